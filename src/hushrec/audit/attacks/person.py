"""Gender, age, occupation: learned from people whose attributes the attacker knows, guessed for the others."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hushrec.audit.attacks.existence import TYPICAL_SIZES
from hushrec.audit.observation import Observation
from hushrec.audit.rank_one import UploadParts, stacked_direction, trace
from hushrec.audit.statistics import fit_ridge
from hushrec.protocols import DeviceProtocol, Sdcf
from hushrec.randomness import FloatArray, IntArray

COMPONENTS = 30


@dataclass(frozen=True)
class PersonFromUploads:
    """Ridge regression on the last few uploads of each person: their direction, and which items they name.

    Where items are chosen by randomized response their names are mostly noise: of the two sets of features, the one
    that does better on the people whose attributes are known is used.
    """

    name: str = "a few uploads"
    target: str = "person"
    claim: str = "none: what a user vector says of its owner is not covered"

    def features(self, observation: Observation) -> list[FloatArray]:
        """One row per person of the crowd: û alone; û with the main components of items reported and of amplitudes."""
        announcements = observation.announcements[-len(observation.crowd[0]) :]
        width = announcements[-1].item_vectors.shape[1]
        directions = np.zeros((len(observation.crowd), width))
        named = np.zeros((len(observation.crowd), observation.terms.n_items), dtype=np.float32)
        sizes = np.zeros_like(named)
        for row, uploads in enumerate(observation.crowd):
            seen = trace(announcements, uploads)
            if seen.parts:
                directions[row] = stacked_direction(seen.parts)
            for part in seen.parts:
                named[row, part.items] += _likely_real(part, observation.protocol)
                sizes[row, part.items] += part.amplitudes
        return [directions, np.concatenate([directions, _components(named), _components(sizes)], axis=1)]

    def guess(self, features: list[FloatArray], known: IntArray, targets: FloatArray, asked: IntArray) -> FloatArray:
        """Scores of the people `asked`, from the attributes `targets` of the people `known`."""
        fits = [(fit_ridge(table[known], targets), table) for table in features]
        best, table = min(fits, key=lambda fit: fit[0].left_out_error)
        return best.scores(table[asked])


def _likely_real(part: UploadParts, protocol: DeviceProtocol) -> FloatArray | float:
    """How much an item counts as rated: fully where only rated ones are reported, else by the size of its error."""
    if not isinstance(protocol, Sdcf):
        return 1.0
    size = np.abs(part.amplitudes)
    return np.minimum(size / (TYPICAL_SIZES * float(np.median(size)) + part.noise), 1.0)


def _components(table: npt.NDArray[np.float32]) -> FloatArray:
    """Main components of the rows, by the Gram matrix of people."""
    centered = (table - table.mean(axis=0)).astype(np.float64)
    values, vectors = np.linalg.eigh(centered @ centered.T)
    keep = min(COMPONENTS, len(values))
    return np.asarray(vectors[:, -keep:] * np.sqrt(np.maximum(values[-keep:], 0)))
