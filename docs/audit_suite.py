"""A list of the attacks on the gradient protocols, each with its counterpart under `masked` or the reason for none."""

from typing import NamedTuple

from hushrec.audit.attacks.combined import EXISTENCE
from hushrec.audit.attacks.linkage import LinkEnrolments, LinkRounds
from hushrec.audit.attacks.metadata import METADATA, FinishTiming
from hushrec.audit.attacks.person import PersonFromReports
from hushrec.audit.attacks.taste import MODEL
from hushrec.audit.attacks.value import VALUE


class Applied(NamedTuple):
    """A row of the list: attacks on the gradient protocols, their counterparts under `masked`, and the reason.

    `findings` holds the first words of the counterparts' names. It is empty if the attacks have no counterpart.
    """

    attacks: tuple[str, ...]
    findings: tuple[str, ...]
    why: str


SUITE = (
    Applied(("popularity",), ("popularity",), "the same attack, which uses no message"),
    Applied(
        ("selection average", "count from selections"),
        (),
        "devices do not select items: a table has a number for every item, rated or not",
    ),
    Applied(
        ("error size", "error likelihood", "averaged errors", "consistent ratings", "consistent ratings and steps"),
        ("sums, everybody else known",),
        "the server sees only sums; the attack uses what remains after everybody else's tables are subtracted",
    ),
    Applied(
        ("opposite directions, one report", "opposite directions", "partners of pairs"), (), "devices send no pairs"
    ),
    Applied(
        ("one report", "two consecutive reports", "consistent ratings, the rest by taste"),
        ("one rating, all else known",),
        "one rating is recovered from the sums; the person's other ratings are known",
    ),
    Applied(("public item vectors",), (), "no person's vector is trained from the public table"),
    Applied(
        ("rank one, one report", "rank one, ten reports", "rank one, later half pooled"),
        ("sums, everybody else known",),
        "the block that begins with the taste vector is recovered from the sums",
    ),
    Applied(
        ("a few reports",),
        ("gender from", "age from", "occupation from"),
        "attributes are learned from what remains of each person's tables",
    ),
    Applied(("count from values",), ("count from sums",), "recovered from the block of counts"),
    Applied(("timing of finish",), ("timing of finish",), "the same attack, which the budget does not cover"),
    Applied(
        ("linkage of rounds",),
        ("one masked table alone", "keys of two attempts"),
        "messages are signed, which links them anyway; masked tables and keys add nothing",
    ),
    Applied(
        ("linkage after re-enrolment",),
        ("known again in a second run",),
        "the same person is recognized in a second run, by what remains of the block of counts",
    ),
    Applied(
        ("malicious V",),
        ("profile or nothing, crafted table", "one rating, crafted table"),
        "public tables with which blocks are as long as the clip allows, or depend on one item alone",
    ),
    Applied(
        ("difference",),
        ("difference of two cohorts", "one rating there or not"),
        "two sums that differ in one device or in one rating are compared",
    ),
    Applied(("promotion",), ("promotion",), "made-up ratings, tables at the clip, and one table beyond the clip"),
    Applied(
        ("canaries",),
        ("profile or nothing", "profiles or nothing, one run", "one rating there or not, one run"),
        "a coin decides whether a device or a rating is there: in many runs, and in one",
    ),
)
KINDS = ("malicious V", "difference", "promotion", "canaries")  # attacks that are not classes of `attacks`


def names_of_suite() -> list[str]:
    """Return the names of all attacks on the gradient protocols, without the suffixes of combined attacks."""
    attacks = (*EXISTENCE, *VALUE, *MODEL, *METADATA)
    bare = [attack.name.removesuffix(", items never reported").partition(" + ")[0] for attack in attacks]
    others = (PersonFromReports().name, FinishTiming().name, LinkRounds().name, LinkEnrolments().name, *KINDS)
    return list(dict.fromkeys([*bare, *others]))
