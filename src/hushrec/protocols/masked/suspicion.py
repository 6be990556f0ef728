"""The choice of devices that the server leaves out after sums that honest devices cannot have made.

Masks hide which device sent a false table. So the server counts, for each device, the discarded sums that it *missed*:
those that were made, since the device's first table, without a table of the device. A device that alone sends false
tables misses no discarded sum. The *suspects* are the devices that were in a discarded sum and missed the fewest. Good
sums clear nobody, because a hostile device may send an honest table in some rounds.

With one cohort, the first discarded sum of a run starts a *search*: the next attempts are probes, in which every device
sends zeros with noise, so that they cost no budget. The *likeliest* suspects are those in the fewest good sums. Each
probe leaves out half of them. A device that sends a false table in every attempt is among the likeliest suspects after
every probe, whether the probe's sum is discarded or good. The search ends when only one likeliest suspect is present;
it is left out for the rest of the run. With n devices, of which s can be left out, a search needs about n/s + log₂ s
probes. After `MOST_VAIN_PROBES` probes that did not make the likeliest suspects fewer, for example because nobody can
be left out, the search fails.

A hostile device that sends honest zeros in probes is not found in this way: the next table after the search spoils the
sum again. From then on there are no probes. The next attempt leaves out suspects: those in the fewest good sums first,
then at random, and only so many that enough devices for the noise remain. A device that is left out misses the next
discarded sum. From then on the other suspects have missed fewer, and they are left out instead. With n devices, of
which s can be left out, one hostile device therefore spoils at most ⌈n/s⌉ + 1 sums of a run besides those of probes,
whatever it does; if it leaves and joins again under another name, at most as many again.

With several cohorts, a discarded sum costs the round one cohort and no further budget. So devices in one discarded sum
are spread over the cohorts of the next round, and only devices in two discarded sums or more are left out.

A *culprit* is known to have broken the protocol: it used a key of another device, or an attempt failed because of its
shares (see `recover_sum`). Culprits are left out first.
"""

import enum
import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from hushrec.protocols.masked.cohorts import cohort_sizes, fewest_devices
from hushrec.protocols.masked.terms import MaskedTerms
from hushrec.protocols.parties import Name, State
from hushrec.randomness import RandomStream

MOST_VAIN_PROBES = 5  # of a search: probes after which there are not fewer likeliest suspects than before


class Search(enum.Enum):
    """The progress of the search, by probes, for one device that sends false tables."""

    NOT_BEGUN = "not begun"
    PROBING = "probing"  # the next attempt is a probe
    ENDED = "ended"  # the likeliest suspect is left out
    FAILED = "failed"  # too many probes were in vain, or a sum was discarded after the search had ended


class Suspicion:
    """A record of the devices of a run: the discarded and the good sums that each was in, and which devices stayed.

    A device has stayed if it reported in the latest of the phases KEYS, SHARES and TABLE that its attempt reached.
    """

    def __init__(self) -> None:
        self.culprits: set[str] = set()
        self.search = Search.NOT_BEGUN
        self._vain = 0  # number of probes in vain
        self._discarded: Counter[str] = Counter()  # number of discarded sums with a device, by name; without probes
        self._missed: Counter[str] = Counter()  # number of discarded sums without it, since its first table
        self._good: Counter[str] = Counter()  # number of good sums with it
        self._present: set[str] = set()  # devices that stayed in the latest attempt that asked them
        self._left = 0  # number of devices that sent keys in the latest attempt, but did not stay

    @property
    def suspects(self) -> frozenset[str]:
        """The devices of which at least one has probably sent a false table.

        They are the devices that were in a discarded sum and missed the fewest discarded sums. During a search by
        probes, and after a search has found a device, two conditions more apply: a suspect is not a culprit, and no
        other suspect is in fewer good sums.
        """
        return self._likeliest if self.search in (Search.PROBING, Search.ENDED) else self._with_fewest_missed

    @property
    def _with_fewest_missed(self) -> frozenset[str]:
        return _with_fewest((name for name, count in self._discarded.items() if count), self._missed)

    @property
    def _likeliest(self) -> frozenset[str]:
        return _with_fewest(self._with_fewest_missed - self.culprits, self._good)

    def level(self, name: Name) -> float:
        """Return the number of discarded sums with this device's table, not counting probes.

        It is infinity for a culprit, which is known to have broken the protocol.
        """
        return math.inf if str(name) in self.culprits else self._discarded[str(name)]

    def record_sums(
        self, discarded: Iterable[Name], good: Iterable[Name], *, was_probe: bool = False, has_one_cohort: bool = True
    ) -> None:
        """Count the devices in an attempt's discarded and good sums, and begin, continue or end the search by probes.

        `discarded` and `good` are the devices in these sums. `record_presence` must have been called for this attempt.
        """
        false = set(map(str, discarded))
        before = len(self._likeliest & self._present)
        self._good.update(map(str, good))
        if false:
            self._missed.update((self._discarded.keys() | self._good.keys()) - false)
        if was_probe:
            left = len(self._likeliest & self._present)
            self._vain += left >= before
            if left <= 1:
                self.search = Search.ENDED
            elif self._vain == MOST_VAIN_PROBES:
                self.search = Search.FAILED
            return
        self._discarded.update(false)
        if false and self.search is Search.ENDED:
            self.search = Search.FAILED
        elif false and has_one_cohort and self.search is Search.NOT_BEGUN:
            self.search = Search.PROBING

    def record_presence(self, asked: Iterable[Name], with_keys: int, stayed: Collection[Name]) -> None:
        """Record which of the devices that an attempt asked have stayed, and how many have left.

        `with_keys` is the number of devices that sent keys, without culprits. `stayed` are the devices that sent a
        table or, if the attempt failed earlier, reported in its last phase. It is empty if the attempt was given up
        while the server waited for keys.
        """
        self._present = self._present.difference(map(str, asked)).union(map(str, stayed))
        self._left = with_keys - len(stayed)

    def without_suspects(self, members: Sequence[Name], terms: MaskedTerms, *, rng: RandomStream) -> list[Name]:
        """Return the members that the next attempt asks: all but the culprits and suspects that can be left out.

        Leaving devices out must not reduce the number of cohorts. So enough of the devices that stayed in their latest
        attempt must remain, even if as many drop out again as in the last attempt. `rng` decides between suspects
        with equal numbers of missed sums and of good sums.
        """
        smallest, largest = terms.rules.smallest, terms.priced.cohort.devices
        present = self._present.intersection(map(str, members))
        cohorts = len(cohort_sizes(len(present), smallest, largest))
        spare = len(present) - self._left - fewest_devices(cohorts, smallest, largest)
        left_out = set()
        for name in self._doubted(members, cohorts, rng):
            if spare <= 0:
                break
            left_out.add(name)
            spare -= str(name) in present
        return [name for name in members if name not in left_out]

    def _doubted(self, members: Sequence[Name], cohorts: int, rng: RandomStream) -> list[Name]:
        """Return the members that may be left out, in the order in which `without_suspects` leaves them out.

        Culprits come first, then devices by the number of discarded sums that they missed, then by the number of good
        sums that they were in; a draw decides between equals. During a search, and after it has found a device, the
        list has culprits and the `_likeliest` suspects only: all that are absent, and the first half of those that are
        present. Otherwise it has culprits and all devices that were in a discarded sum or, with several `cohorts`, in
        at least two discarded sums.
        """
        has_likeliest = self.search in (Search.PROBING, Search.ENDED)
        least = 1 if has_likeliest or cohorts == 1 else 2
        doubted = [name for name in members if self.level(name) >= least]
        order = {
            name: (str(name) not in self.culprits, self._missed[str(name)], self._good[str(name)], draw)
            for name, draw in zip(doubted, rng.random(len(doubted)), strict=True)
        }
        doubted.sort(key=order.__getitem__)
        if not has_likeliest:
            return doubted
        likeliest = self._likeliest
        here = [name for name in doubted if str(name) in likeliest & self._present]
        left_out = likeliest.difference(map(str, here[math.ceil(len(here) / 2) :])) | self.culprits
        return [name for name in doubted if str(name) in left_out]

    @property
    def state(self) -> State:
        """All fields of this object as arrays, which `restore` reads."""
        names = sorted(self._discarded.keys() | self._good.keys())
        counts = {"discarded": self._discarded, "missed": self._missed, "good": self._good}
        return {
            "suspicion_names": np.array(names, dtype=np.str_),
            **{f"suspicion_{kind}": np.array([own[name] for name in names], np.int64) for kind, own in counts.items()},
            "culprits": np.array(sorted(self.culprits), dtype=np.str_),
            "present": np.array(sorted(self._present), dtype=np.str_),
            "left": np.array(self._left),
            "search": np.array(self.search.value, dtype=np.str_),
            "vain_probes": np.array(self._vain),
        }

    def restore(self, state: State) -> None:
        """Set all fields from the arrays that the property `state` returned.

        A `state` that an earlier version of the program saved may not have these arrays; then nothing changes.
        """
        if "suspicion_names" not in state:
            return
        names, discarded = list(map(str, state["suspicion_names"])), state["suspicion_discarded"]
        missed = state.get("suspicion_missed", discarded.max(initial=0) - discarded)  # earlier versions did not save it
        counts = (map(int, own) for own in (discarded, missed, state["suspicion_good"]))
        self._discarded, self._missed, self._good = (Counter(dict(zip(names, own, strict=True))) for own in counts)
        self.culprits, self._present = (set(map(str, state[name])) for name in ("culprits", "present"))
        self._left = int(state["left"])
        self.search = Search(str(state.get("search", Search.FAILED.value)))
        self._vain = int(state.get("vain_probes", 0))


def _with_fewest(names: Iterable[str], counts: Counter[str]) -> frozenset[str]:
    """Return the names with the smallest count."""
    own = {name: counts[name] for name in names}
    fewest = min(own.values(), default=0)
    return frozenset(name for name, count in own.items() if count == fewest)
