"""The choice of devices that the server leaves out after sums that honest devices cannot have made.

Masks hide which device sent a false table. The server counts, for each device, the discarded sums and the good sums
that its table was in. A device that alone sends false tables is in every discarded sum, so it always has the largest
count of these. Good sums clear nobody, because a hostile device may send an honest table in some rounds.

The next attempt leaves out the devices with the largest count of discarded sums; among these, those in the fewest good
sums first, then at random. It leaves out only so many that enough devices for the noise remain. A device that is left
out is not in the next discarded sum. From then on the other suspects have a larger count, and they are left out
instead. With one cohort of n devices, of which s can be left out, one hostile device therefore spoils at most ⌈n/s⌉
attempts of a run, whatever it does.

With several cohorts, a discarded sum costs the round one cohort and no further budget. So devices in one discarded sum
are spread over the cohorts of the next round, and only devices in two discarded sums or more are left out.

A *culprit* is known to have broken the protocol: it used a key of another device, or an attempt failed because of its
shares (see `recover_sum`). Culprits are left out first.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from hushrec.protocols.masked.cohorts import cohort_sizes, fewest_devices
from hushrec.protocols.masked.terms import MaskedTerms
from hushrec.protocols.parties import Name, State
from hushrec.randomness import RandomStream


class Suspicion:
    """A record of the devices of a run: the discarded and the good sums that each was in, and which ones stayed.

    A device has stayed if it reported in the latest of the phases KEYS, SHARES and TABLE that its attempt reached.
    """

    def __init__(self) -> None:
        self.culprits: set[str] = set()
        self._discarded: Counter[str] = Counter()  # number of discarded sums with a device's table, by name
        self._good: Counter[str] = Counter()  # number of good sums with it
        self._present: set[str] = set()  # devices that stayed in the latest attempt that asked them
        self._left = 0  # number of devices that sent keys in the latest attempt, but did not stay

    @property
    def suspects(self) -> frozenset[str]:
        """The devices in the most discarded sums; at least one of them has probably sent a false table."""
        most = max(self._discarded.values(), default=0)
        return frozenset(name for name, count in self._discarded.items() if count == most)

    def level(self, name: Name) -> float:
        """Return the number of discarded sums with this device's table; infinity for a culprit."""
        return math.inf if str(name) in self.culprits else self._discarded[str(name)]

    def record_sums(self, discarded: Iterable[Name], good: Iterable[Name]) -> None:
        """Count the devices of a round's discarded sums and of its good ones."""
        self._discarded.update(map(str, discarded))
        self._good.update(map(str, good))

    def record_presence(self, asked: Iterable[Name], with_keys: int, with_table: Collection[Name]) -> None:
        """Record which of the devices that an attempt asked have stayed, and how many have left.

        `with_keys` is the number of devices that sent keys. `with_table` are the devices that stayed: those that sent a
        table or, if the attempt ended earlier, those that reported in its last phase.
        """
        self._present = self._present.difference(map(str, asked)).union(map(str, with_table))
        self._left = with_keys - len(with_table)

    def forget_presence(self) -> None:
        """Forget which devices have stayed.

        The next attempt then leaves nobody out, because no device is known to be present in place of a suspect.
        """
        self._present = set()

    def without_suspects(self, members: Sequence[Name], terms: MaskedTerms, *, rng: RandomStream) -> list[Name]:
        """Return the members that the next attempt asks: all but the culprits and suspects that can be left out.

        Enough devices for as many cohorts as before must remain. `rng` decides between suspects with equal counts.
        """
        smallest, largest = terms.rules.smallest, terms.priced.cohort.devices
        present = self._present.intersection(map(str, members))
        cohorts = len(cohort_sizes(len(present), smallest, largest))
        spare = len(present) - self._left - fewest_devices(cohorts, smallest, largest)
        least = 1 if cohorts == 1 else 2
        doubted = [name for name in members if self.level(name) >= least]
        draws = dict(zip(doubted, rng.random(len(doubted)), strict=True))
        left_out = set()
        for name in sorted(doubted, key=lambda name: (-self.level(name), self._good[str(name)], draws[name])):
            if spare <= 0:
                break
            left_out.add(name)
            spare -= str(name) in present
        return [name for name in members if name not in left_out]

    @property
    def state(self) -> State:
        """The arrays from which `restore` makes the same object."""
        names = sorted(self._discarded.keys() | self._good.keys())
        return {
            "suspicion_names": np.array(names, dtype=np.str_),
            "suspicion_discarded": np.array([self._discarded[name] for name in names], dtype=np.int64),
            "suspicion_good": np.array([self._good[name] for name in names], dtype=np.int64),
            "culprits": np.array(sorted(self.culprits), dtype=np.str_),
            "present": np.array(sorted(self._present), dtype=np.str_),
            "left": np.array(self._left),
        }

    def restore(self, state: State) -> None:
        """Replace this object's counts by those of `state`.

        A `state` without such counts, which an earlier version of the program saved, changes nothing.
        """
        if "suspicion_names" not in state:
            return
        names = list(map(str, state["suspicion_names"]))
        counts = (map(int, state[f"suspicion_{kind}"]) for kind in ("discarded", "good"))
        self._discarded, self._good = (Counter(dict(zip(names, own, strict=True))) for own in counts)
        self.culprits, self._present = (set(map(str, state[name])) for name in ("culprits", "present"))
        self._left = int(state["left"])
