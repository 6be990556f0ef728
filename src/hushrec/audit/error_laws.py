"""Distributions of real and fake errors, fitted to one person's reports, to distinguish real from fake errors.

In `sdcf`, real errors are close to N(μ, σ²), and fake errors have the same distribution truncated to [−α, α], where
P(|X| < α) = exp(−ε_g). An attacker does not see errors but amplitudes: an amplitude a is an error times ‖u‖, the
unknown norm of the user vector, plus noise of standard deviation τ. Below, μ, σ and α are for errors times ‖u‖, so that
‖u‖ does not occur. With m' = (a σ² + μ τ²)/(σ² + τ²) and s'² = σ² τ²/(σ² + τ²), the densities are

    real(a) = N(a; μ, σ² + τ²)        fake(a) = real(a) e^ε_g [Φ((α − m')/s') − Φ((−α − m')/s')]
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, logit, ndtr

from hushrec.arrays import FloatArray
from hushrec.audit.rank_one import ReportParts
from hushrec.budget.calibrate import fake_error_bound

SMALLEST_DENSITY = 1e-12
MOST_FITTED = 1500  # approximate largest number of amplitudes in one fit


@dataclass(frozen=True)
class ErrorLaw:
    """The fitted distributions of a person's real and fake errors in a few neighbouring rounds.

    The errors are multiplied by the norm ‖u‖ of the user vector. Real errors are normal with `mean` and `deviation`.
    The distribution of fake errors is that of real errors, truncated to ± `bound`, which follows from `epsilon_g`. The
    methods get amplitudes: an amplitude is an error times ‖u‖ plus noise, and the argument `noise` is the standard
    deviation of this noise.
    """

    mean: float
    deviation: float
    bound: float  # α times ‖u‖
    epsilon_g: float
    share_real: float  # the fraction of real errors among all errors

    def real(self, amplitudes: FloatArray, noise: FloatArray | float) -> FloatArray:
        """Return the probability density of each amplitude (error times ‖u‖ plus noise) if its error is real."""
        return _normal(amplitudes, self.mean, np.hypot(self.deviation, noise)) + SMALLEST_DENSITY

    def fake(self, amplitudes: FloatArray, noise: FloatArray | float) -> FloatArray:
        """Return the probability density of each amplitude (error times ‖u‖ plus noise) if its error is fake."""
        if self.bound == math.inf:
            return self.real(amplitudes, noise)
        if self.bound < 1e-3 * np.min(noise):  # fake errors are negligible beside the noise
            return _normal(amplitudes, 0.0, noise) + SMALLEST_DENSITY
        total = self.deviation**2 + np.square(noise)
        center = (amplitudes * self.deviation**2 + self.mean * np.square(noise)) / total
        spread = self.deviation * noise / np.sqrt(total)
        inside = ndtr((self.bound - center) / spread) - ndtr((-self.bound - center) / spread)
        whole = _normal(amplitudes, self.mean, np.sqrt(total))
        return np.asarray(whole * inside * math.exp(self.epsilon_g) + SMALLEST_DENSITY)

    def log_ratio(self, amplitudes: FloatArray, noise: FloatArray | float) -> FloatArray:
        """Return ln(density if real / density if fake) of each amplitude (error times ‖u‖ plus noise); 0 if ε_g = 0."""
        return np.asarray(np.log(self.real(amplitudes, noise)) - np.log(self.fake(amplitudes, noise)))


def _normal(x: FloatArray, mean: float, deviation: FloatArray | float) -> FloatArray:
    return np.asarray(np.exp(-(((x - mean) / deviation) ** 2) / 2) / (deviation * math.sqrt(2 * math.pi)))


def fit_laws(parts: tuple[ReportParts, ...], epsilon_g: float) -> list[ErrorLaw]:
    """Return an `ErrorLaw` for each report of one person, in the order of the reports.

    The reports are split into spans by `growing_spans`. The reports of a span share one law, fitted to all of them.
    """
    laws: list[ErrorLaw] = []
    guess: ErrorLaw | None = None
    for span in reversed(growing_spans(len(parts))):
        amplitudes = np.concatenate([parts[index].amplitudes for index in span])
        noise = np.concatenate([np.full(len(parts[index].items), parts[index].noise) for index in span])
        guess = fit_law(amplitudes, noise, epsilon_g, guess)
        laws = [guess] * len(span) + laws
    return laws


def growing_spans(count: int) -> list[range]:
    """Split `count` rounds into the growing spans 0, 1–2, 3–8, 9–26, …, because later rounds differ less."""
    edges = [0, *(3**power for power in range(count.bit_length()) if 3**power < count), count]
    return [range(low, high) for low, high in pairwise(edges) if low < high]


def fit_law(amplitudes: FloatArray, noise: FloatArray, epsilon_g: float, guess: ErrorLaw | None = None) -> ErrorLaw:
    """Return the `ErrorLaw` under which the amplitudes are most likely.

    An amplitude is an error times the norm of the user vector, plus noise, and `noise` is the standard deviation of
    each amplitude's noise. If `guess` is given, the search starts from it.
    """
    stride = -(-len(amplitudes) // MOST_FITTED)
    amplitudes, noise = amplitudes[::stride], noise[::stride]
    scale = float(np.sqrt(np.mean(amplitudes**2))) + 1e-12
    if epsilon_g == 0:
        return ErrorLaw(float(amplitudes.mean()), float(amplitudes.std()) + 1e-9, math.inf, 0.0, 0.05)

    def law_of(x: FloatArray) -> ErrorLaw:
        mean, deviation = float(x[0]) * scale, math.exp(float(np.clip(x[1], -12, 12))) * scale
        bound = fake_error_bound(mean, deviation, epsilon_g)
        return ErrorLaw(mean, deviation, bound, epsilon_g, float(expit(np.clip(x[2], -7, 0.5))))

    def cost(x: Any) -> float:
        law = law_of(x)
        mixed = law.share_real * law.real(amplitudes, noise) + (1 - law.share_real) * law.fake(amplitudes, noise)
        return -float(np.log(mixed).sum())

    starts = [np.array([mean, deviation, -3.0]) for mean, deviation in ((0.0, 0.0), (0.0, 1.2), (3.0, 0.0))]
    if guess is not None:
        starts = [np.array([guess.mean / scale, math.log(guess.deviation / scale), logit(guess.share_real)])]
    steps = np.vstack([np.zeros(3), np.eye(3) / 3])  # first steps of 1/3 in each parameter
    fits = []
    for start in starts:
        options: Any = {"maxfev": 70, "xatol": 1e-3, "fatol": 1e-2, "initial_simplex": start + steps}
        fits.append(minimize(cost, start, method="Nelder-Mead", options=options))
    return law_of(min(fits, key=lambda fit: float(fit.fun)).x)
