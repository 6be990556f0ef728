"""A batch of many runs of model `mf` or `bpr` (budgets × splits × seeds) in PyTorch, on one GPU or on the CPU.

Results have the same distribution as those of engine `reference`. Random numbers are keyed by (seed, purpose, round),
so that a run has the same result in any batch, except for rounding errors. The noise of all c gradients of an item is
drawn as one normal vector with c times the variance. The selection is drawn for every (user, item) cell.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hushrec.arrays import BoolArray, FloatArray, IntArray
from hushrec.engines import Remark, State
from hushrec.engines.gpu import dense, pairs, user_arrays
from hushrec.engines.gpu.held_out import HeldOut, held_out_ranks, rating_errors
from hushrec.engines.gradient import GradientEngine, GradientProblem
from hushrec.errors import ParameterError
from hushrec.protocols.gradient.plausible import check_finite, check_item_vectors
from hushrec.protocols.gradient.prediction import initial_item_vectors, initial_user_vectors
from hushrec.randomness import Purpose, SeededRandomness


class GpuBatch:
    """A batch of runs with the same users and items; `run_round` runs one round of every run.

    `kernels` is `fused` (Triton, for model `mf` on a GPU) or `dense` (plain PyTorch); None chooses `fused` if possible.
    """

    def __init__(
        self,
        problems: Sequence[GradientProblem],
        *,
        device: str | None = None,
        kernels: str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        for problem in problems:
            user_arrays.check_supported(problem, problems[0])
        self.problems = list(problems)
        self.n_users, self.n_items = problems[0].n_users, problems[0].n_items
        self._runs = range(len(problems))
        self.device = torch.device(device or default_device())
        self.from_pairs = problems[0].model.learns_from_pairs
        fusable = self.device.type == "cuda" and not self.from_pairs
        self.kernels = kernels or ("fused" if fusable else "dense")
        if self.from_pairs and self.kernels == "fused":
            raise ParameterError("kernels must be dense for model bpr, got fused.")
        self.round_number = 0
        self._dtype = dtype
        self._generator = torch.Generator(device=self.device)
        self._place_values()
        self._place_vectors()
        self._place_terms()
        shape = (len(problems), self.n_users, self.n_items)
        self._bits = torch.zeros(shape, dtype=torch.bool, device=self.device)  # drawn in the first round
        self._value_rho = self._tensor(np.zeros(shape[:2]))
        self._reports = self._tensor(np.zeros(shape[0]))

    def run_round(self) -> None:
        """Run one round of every run. Users and items are both updated from the vectors at the round's start."""
        self.round_number += 1
        self._redraw_bits()
        if self.from_pairs:
            both = [self._pair_sums(run) for run in self._runs]
            user_gradients = torch.stack([pull for pull, _ in both])
            items = dense.ItemSums.stacked([sums for _, sums in both])
        else:
            users, items = self._fused_sums() if self.kernels == "fused" else self._dense_sums()
            user_gradients = users.gradients
        self._apply(user_gradients, items, *self._noises(items.counts))

    def is_finite(self) -> BoolArray:
        """Return whether all vectors of each run are finite, `(n_runs,)`."""
        finite = self.user_vectors.isfinite().all((1, 2)) & self.item_vectors.isfinite().all((1, 2))
        return np.asarray(finite.cpu().numpy())

    def value_rho(self) -> FloatArray:
        """Return the privacy loss ρ (zCDP) of the gradient values sent so far, `(n_runs, n_users)`."""
        return np.asarray(self._value_rho.cpu().double().numpy())

    def mean_reports(self) -> FloatArray:
        """Return the mean number of items that a device reported per round, `(n_runs,)`."""
        rounds_of_clients = (self._counts > 0).sum(-1) * max(self.round_number, 1)
        return np.asarray((self._reports / rounds_of_clients).cpu().double().numpy())

    def place_held_out(self, users: IntArray, items: IntArray, values: FloatArray, splits: Sequence[int]) -> HeldOut:
        """Return held-out ratings as tensors on the PyTorch device of this batch.

        `users`, `items` and `values` are `(n_splits, n_tests)`; run number b is measured on row `splits[b]`.
        """
        who, what = (torch.as_tensor(one, device=self.device) for one in (users, items))
        return HeldOut(who, what, self._tensor(values), torch.tensor(splits, device=self.device))

    def held_out_errors(self, tests: HeldOut) -> FloatArray:
        """Return each run's RMSE and mean absolute error on its held-out ratings (from 1 to 5), `(n_runs, 2)`."""
        if self.kernels == "fused":
            from hushrec.engines.gpu import fused

            square, absolute = fused.held_out_errors(tests, self.user_vectors, self.item_vectors)
            return np.asarray(torch.stack([square.sqrt(), absolute], 1).cpu().double().numpy())
        return rating_errors(tests, self.user_vectors, self.item_vectors)

    def held_out_ranks(self, tests: HeldOut) -> IntArray:
        """Return how each held-out item ranks among the items without a training rating, `(n_runs, 3, n_tests)`.

        The middle axis has three counts of these items: those with a higher score than the held-out item, the others
        with an equal score, and all but the held-out item.
        """
        found = [
            held_out_ranks(tests.users[split], tests.items[split], self._is_rated(run), *self._vectors(run))
            for run, split in enumerate(tests.splits.tolist())
        ]
        return np.stack(found)

    def state(self) -> State:
        tensors = {"user_vectors": self.user_vectors, "item_vectors": self.item_vectors, "bits": self._bits}
        tensors |= {"value_rho": self._value_rho, "reports": self._reports}
        arrays = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
        return {**arrays, "round_number": np.array(self.round_number)}

    def restore(self, state: State) -> None:
        """Continue from a state that `state` returned.

        The state has no random generator, because the draws of a round depend only on the seed and the round.
        """
        self.round_number = int(state["round_number"])
        self._bits = torch.as_tensor(state["bits"], device=self.device)
        self.user_vectors = self._tensor(state["user_vectors"])
        self.item_vectors = self._tensor(state["item_vectors"])
        self._value_rho = self._tensor(state["value_rho"])
        self._reports = self._tensor(state["reports"])

    def _fused_sums(self) -> tuple[dense.UserSums, dense.ItemSums]:
        from hushrec.engines.gpu import fused

        vectors = (self.user_vectors, self.item_vectors)
        users = fused.user_sums(self._values, self._sets, self._counts, *vectors)
        law = dense.fake_law(users.error_mean, users.error_deviation, self._epsilon_g)
        keys = torch.tensor([self._key(run, Purpose.SELECTION) for run in self._runs], device=self.device)
        items = fused.item_sums(self._values, self._sets, self._bits, keys, self._zero, self._one, law, *vectors)
        return users, items

    def _dense_sums(self) -> tuple[dense.UserSums, dense.ItemSums]:
        """Return the `UserSums` and `ItemSums` of one round of all runs, computed by kernels `dense` run by run."""
        users = [
            dense.user_sums(self._values[self._sets[run]], self._counts[run], *self._vectors(run)) for run in self._runs
        ]
        mean, deviation = (torch.stack([getattr(u, name) for u in users]) for name in ("error_mean", "error_deviation"))
        law = dense.fake_law(mean, deviation, self._epsilon_g)
        items = []
        for run in self._runs:
            fakes = law.of_run(run).errors(self._uniform(run, Purpose.FAKE_ERRORS)).to(self._dtype)
            values, selected = self._values[self._sets[run]], self._selected(run)
            items.append(dense.item_sums(values, selected, fakes, *self._vectors(run)))
        gradients = torch.stack([entry.gradients for entry in users])
        return dense.UserSums(gradients, mean, deviation), dense.ItemSums.stacked(items)

    def _selected(self, run: int) -> Tensor:
        """Return whether each user of one run selects each item in this round, `(n_users, n_items)`."""
        uniform = self._uniform(run, Purpose.SELECTION)
        return dense.select_cells(self._bits[run], self._zero[run], self._one[run], uniform)

    def _pair_sums(self, run: int) -> tuple[Tensor, dense.ItemSums]:
        """Return the sums of one round of a run of model `bpr`: Σ s (v_j − v_j') for each user, and the `ItemSums`.

        A pair of a rated item j and an unrated item j' has the item vectors v_j and v_j' and the error s.
        """
        profiles, vectors = self._profiles[self._set_numbers[run]], self._vectors(run)
        partners = profiles.unrated_items(profiles.users, self._pair_draws(run, Purpose.USER_PAIRS, profiles.users))
        errors, pull = pairs.own_pairs(profiles, partners, *vectors)
        if self.problems[run].protocols[0].selection is not None:
            reports = self._selected_reports(run, profiles)
        else:
            reports = pairs.both_ends(profiles, partners, errors)
        return pull, pairs.item_sums(reports, vectors[0], self.n_items)

    def _selected_reports(self, run: int, profiles: pairs.Profiles) -> pairs.Reports:
        users, items = self._selected(run).nonzero(as_tuple=True)
        is_rated = self._is_rated(run)[users, items]
        draws = self._pair_draws(run, Purpose.SELECTED_PAIRS, users)
        partners = pairs.selected_partners(profiles, users, is_rated, draws)
        return pairs.selected_reports(users, items, partners, is_rated, *self._vectors(run))

    def _is_rated(self, run: int) -> Tensor:
        return ~self._values[self._set_numbers[run]].isnan()

    def _vectors(self, run: int) -> tuple[Tensor, Tensor]:
        return self.user_vectors[run], self.item_vectors[run]

    def _noises(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Return the noise that this round adds to all user vectors and to all item vectors.

        With the step size η, its variance is η / h for a user with h ratings, and η / c for an item with c gradients
        (in `counts`). The latter is the variance of the mean of c independent draws with variance η.
        """
        eta, h = self._step_sizes(), self._counts[..., None].clamp_min(1)
        users = self._normal(Purpose.USER_NOISE, self.n_users) * (eta / h).sqrt()
        items = self._normal(Purpose.GRADIENT_NOISE, self.n_items) * (eta / counts[..., None].clamp_min(1)).sqrt()
        return users, items

    def _apply(self, user_gradients: Tensor, items: dense.ItemSums, user_noise: Tensor, item_noise: Tensor) -> None:
        """Update all vectors, and the totals of privacy losses and of reported items.

        The vectors of users who take no part and of items without gradients stay as they are.
        """
        eta, weight = self._step_sizes(), self._weights
        h, c = self._counts[..., None], items.counts.to(self._dtype)[..., None]
        squared_norms = (self.user_vectors**2).sum(-1)
        self._value_rho += (eta * weight**2)[..., 0] / 2 * items.squares * squared_norms  # Σ ‖η N e u‖² / 2η
        self._reports += items.counts.sum(-1)
        user_step = weight * user_gradients / h.clamp_min(1) - self.user_vectors * self._user_prior
        item_step = weight * items.gradients / c.clamp_min(1) - self.item_vectors * self._item_prior
        self.user_vectors = self.user_vectors + torch.where(h > 0, eta * user_step + user_noise, 0.0)
        self.item_vectors = self.item_vectors + torch.where(c > 0, eta * item_step + item_noise, 0.0)

    def _step_sizes(self) -> Tensor:
        return self._tensor([problem.terms.step_size(self.round_number) for problem in self.problems])[:, None, None]

    def _key(self, run: int, purpose: Purpose) -> int:
        """Return the 63-bit key of a generator for this run's seed, the purpose and the round."""
        words = np.random.SeedSequence([self.problems[run].seed, int(purpose), self.round_number])
        return int(words.generate_state(1, np.uint64)[0] >> np.uint64(1))

    def _uniform(self, run: int, purpose: Purpose) -> Tensor:
        self._generator.manual_seed(self._key(run, purpose))
        return torch.rand((self.n_users, self.n_items), generator=self._generator, device=self.device)

    def _pair_draws(self, run: int, purpose: Purpose, like: Tensor) -> Tensor:
        """Return one uniform number in [0, 1) for each entry of `like`, from which the partner in a pair is chosen.

        The numbers are float64, because float32 has too few values to choose every item equally often.
        """
        self._generator.manual_seed(self._key(run, purpose))
        return torch.rand(len(like), generator=self._generator, dtype=torch.float64, device=self.device)

    def _normal(self, purpose: Purpose, rows: int) -> Tensor:
        shape = (len(self.problems), rows, self.problems[0].model.n_factors)
        noise = torch.empty(shape, dtype=self._dtype, device=self.device)
        for run in self._runs:
            self._generator.manual_seed(self._key(run, purpose))
            noise[run].normal_(generator=self._generator)
        return noise

    def _redraw_bits(self) -> None:
        """Draw the permanent bits of every run for which this round is the first of a permanent epoch."""
        for run, problem in enumerate(self.problems):
            epoch = problem.terms.epoch
            if self.round_number == 1 or epoch(self.round_number) != epoch(self.round_number - 1):
                flips = self._uniform(run, Purpose.PERMANENT_BITS) < self._flip[run][:, None]
                self._bits[run] = self._protected(run) ^ flips

    def _protected(self, run: int) -> Tensor:
        """Return the bits from which permanent bits are drawn, `(n_users, n_items)`: 1 for a rated item.

        If a user rated more than `profile_cap` items, only that many of them, chosen at random, have a 1.
        """
        problem = self.problems[run]
        rng = SeededRandomness(problem.seed).stream(Purpose.PERMANENT_BITS, self.round_number)
        kept = user_arrays.kept_under_caps(problem, rng=rng)
        if kept is None:
            return self._is_rated(run)
        bits = np.zeros((self.n_users, self.n_items), np.bool_)
        bits[problem.rating_users[kept], problem.items[kept]] = True
        return torch.as_tensor(bits, device=self.device)

    def _tensor(self, values: npt.ArrayLike) -> Tensor:
        return torch.as_tensor(np.asarray(values), dtype=self._dtype, device=self.device)

    def _place_values(self) -> None:
        """Copy each distinct set of training values to the PyTorch device.

        `_set_numbers` has, for each run, the number of its set.
        """
        keys = [user_arrays.training_key(problem) for problem in self.problems]
        distinct = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        self._set_numbers = [distinct[key] for key in keys]
        self._sets = torch.tensor(self._set_numbers, device=self.device)
        self._values = torch.full(
            (len(distinct), self.n_users, self.n_items), torch.nan, dtype=self._dtype, device=self.device
        )
        firsts = [self.problems[keys.index(key)] for key in distinct]
        self._profiles = [pairs.place_profiles(problem, self.device) for problem in firsts] if self.from_pairs else []
        for number, problem in enumerate(firsts):
            users = torch.as_tensor(problem.rating_users, device=self.device)
            items = torch.as_tensor(problem.items, device=self.device)
            self._values[number, users, items] = self._tensor(user_arrays.training_values(problem))

    def _place_vectors(self) -> None:
        """Copy the initial vectors of every run to the PyTorch device. They depend on the seed, not on the engine."""
        seeds = {problem.seed: problem for problem in self.problems}
        number = {seed: place for place, seed in enumerate(seeds)}
        chosen = torch.tensor([number[problem.seed] for problem in self.problems], device=self.device)
        self.user_vectors = self._tensor([initial_user_vectors(p) for p in seeds.values()])[chosen]  # (b, n, k)
        self.item_vectors = self._tensor([initial_item_vectors(p) for p in seeds.values()])[chosen]  # (b, m, k)

    def _place_terms(self) -> None:
        terms = [problem.terms for problem in self.problems]
        self._weights = self._tensor([entry.data_weight for entry in terms])[:, None, None]
        self._user_prior = self._tensor([entry.user_regularization for entry in terms])[:, None, :]
        self._item_prior = self._tensor([entry.item_regularization for entry in terms])[:, None, :]
        self._counts = self._tensor([p.takes_part * p.rated_counts for p in self.problems])  # (b, n)
        choices = [user_arrays.selection_choices(problem) for problem in self.problems]
        self._flip, self._zero, self._one, self._epsilon_g = (self._tensor(rows) for rows in zip(*choices, strict=True))


class GpuEngine(GradientEngine):
    """The engine `gpu` for one problem of a gradient protocol: a batch of one run."""

    def __init__(self, problem: GradientProblem, *, device: str | None = None, remark: Remark | None = None) -> None:
        super().__init__(problem)
        self._batch = GpuBatch([problem], device=device)

    @property
    def round_number(self) -> int:
        return self._batch.round_number

    @property
    def item_vectors(self) -> FloatArray:
        return np.asarray(self._batch.item_vectors[0].cpu().double().numpy())

    @property
    def user_vectors(self) -> FloatArray:
        return np.asarray(self._batch.user_vectors[0].cpu().double().numpy())

    def run_round(self) -> None:
        check_item_vectors(self.item_vectors, self.problem.n_items)
        self._batch.run_round()
        check_finite(self.round_number, self.user_vectors, self.item_vectors)

    def value_rho(self) -> FloatArray:
        return np.asarray(self._batch.value_rho()[0])

    def bytes_per_client_round(self) -> float:
        return 4 * float(self._batch.mean_reports()[0]) * (1 + self.problem.model.item_width)

    def state(self) -> State:
        return self._batch.state()

    def restore(self, state: State) -> None:
        self._batch.restore(state)


def default_device() -> str:
    """Return the name of the PyTorch device to use: "cuda" if there is a GPU, otherwise "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"
