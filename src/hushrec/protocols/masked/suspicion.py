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

Once a sum without some suspects is good, the hostile device is probably one of these *hidden* suspects. While the
reserve of the budget can pay for a spoiled attempt (`may_spoil`), the next attempt asks one half of them again. A good
sum then clears this half, and a discarded sum the other half, so that after at most log₂ s + 1 more discarded sums only
one device is left out. If a sum without any hidden suspect is discarded, the hostile device has sent honest tables in
between, and the halving ends for the rest of the run.

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
    HALVING = "halving"  # too many probes were in vain, or a sum was discarded after the search had ended
    FAILED = "failed"  # the halving of the hidden suspects has failed too


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
        self._hidden: set[str] = set()  # suspects without which a sum was good; one of them probably sends false tables

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
                self.search = Search.HALVING
            return
        self._discarded.update(false)
        if self.search is Search.HALVING and has_one_cohort:
            self._halve_hidden(false or set(map(str, good)), is_good=not false)
        elif false and self.search is Search.ENDED:
            self.search = Search.HALVING
        elif false and has_one_cohort and self.search is Search.NOT_BEGUN:
            self.search = Search.PROBING

    def _halve_hidden(self, in_sum: set[str], *, is_good: bool) -> None:
        """Reduce the hidden suspects to those that an attempt's sum, with the tables of `in_sum`, does not clear."""
        if is_good:
            self._hidden = (self._hidden or set(self._with_fewest_missed)) - in_sum
        elif self._hidden:
            self._hidden &= in_sum
            if not self._hidden:
                self.search = Search.FAILED

    def record_presence(self, asked: Iterable[Name], with_keys: int, stayed: Collection[Name]) -> None:
        """Record which of the devices that an attempt asked have stayed, and how many have left.

        `with_keys` is the number of devices that sent keys, without culprits. `stayed` are the devices that sent a
        table or, if the attempt failed earlier, reported in its last phase. It is empty if the attempt was given up
        while the server waited for keys.
        """
        self._present = self._present.difference(map(str, asked)).union(map(str, stayed))
        self._left = with_keys - len(stayed)

    def without_suspects(
        self, members: Sequence[Name], terms: MaskedTerms, *, rng: RandomStream, may_spoil: bool = False
    ) -> list[Name]:
        """Return the members that the next attempt asks: all but the culprits and suspects that can be left out.

        Leaving devices out must not reduce the number of cohorts. So enough of the devices that stayed in their latest
        attempt must remain, even if as many drop out again as in the last attempt. `rng` decides between suspects
        with equal numbers of missed sums and of good sums. `may_spoil` says whether one half of the hidden suspects may
        be asked again, because the budget can pay for a spoiled attempt.
        """
        smallest, largest = terms.rules.smallest, terms.priced.cohort.devices
        present = self._present.intersection(map(str, members))
        cohorts = len(cohort_sizes(len(present), smallest, largest))
        spare = len(present) - self._left - fewest_devices(cohorts, smallest, largest)
        left_out = set()
        for name in self._doubted(members, cohorts, rng, may_spoil=may_spoil):
            if spare <= 0:
                break
            left_out.add(name)
            spare -= str(name) in present
        return [name for name in members if name not in left_out]

    def _doubted(self, members: Sequence[Name], cohorts: int, rng: RandomStream, *, may_spoil: bool) -> list[Name]:
        """Return the members that may be left out, in the order in which `without_suspects` leaves them out.

        Culprits come first, then devices by the number of discarded sums that they missed, then by the number of good
        sums that they were in; a draw decides between equals. During a search, and after it has found a device, the
        list has culprits and the `_likeliest` suspects only: all that are absent, and the first half of those that are
        present. The same holds for hidden suspects, if there are any, but all of them stay in the list unless
        `may_spoil`. Otherwise it has culprits and all devices that were in a discarded sum or, with several `cohorts`,
        in at least two discarded sums.
        """
        has_likeliest = self.search in (Search.PROBING, Search.ENDED)
        least = 1 if has_likeliest or cohorts == 1 else 2
        doubted = [name for name in members if self.level(name) >= least]
        order = {
            name: (str(name) not in self.culprits, self._missed[str(name)], self._good[str(name)], draw)
            for name, draw in zip(doubted, rng.random(len(doubted)), strict=True)
        }
        doubted.sort(key=order.__getitem__)
        hidden = self._hidden if self.search is Search.HALVING and cohorts == 1 else set[str]()
        candidates = self._likeliest if has_likeliest else frozenset(hidden)
        if not candidates:
            return doubted
        here = [name for name in doubted if str(name) in candidates & self._present]
        asked_again = here[math.ceil(len(here) / 2) :] if has_likeliest or may_spoil else []
        left_out = candidates.difference(map(str, asked_again)) | self.culprits
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
            "hidden": np.array(sorted(self._hidden), dtype=np.str_),
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
        self._hidden = set(map(str, state.get("hidden", ())))  # earlier versions did not save it


def _with_fewest(names: Iterable[str], counts: Counter[str]) -> frozenset[str]:
    """Return the names with the smallest count."""
    own = {name: counts[name] for name in names}
    fewest = min(own.values(), default=0)
    return frozenset(name for name, count in own.items() if count == fewest)
