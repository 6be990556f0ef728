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
    Applied(("popularity",), ("popularity",), "what is known without any message: the same attack"),
    Applied(
        ("selection average", "count from selections"),
        (),
        "nothing is selected: a table has a number for every item, rated or not",
    ),
    Applied(
        ("error size", "error likelihood", "averaged errors", "consistent ratings", "consistent ratings and steps"),
        ("sums, everybody else known",),
        "no single report is seen, only sums: what they leave of a person is attacked instead",
    ),
    Applied(
        ("opposite directions, one upload", "opposite directions", "partners of pairs"), (), "devices send no pairs"
    ),
    Applied(
        ("one upload", "two consecutive uploads", "consistent ratings, the rest by taste"),
        ("one rating, all else known",),
        "one rating is read off the sums, the person's others known",
    ),
    Applied(("public item vectors",), (), "no person's vector is trained from the public table"),
    Applied(
        ("rank one, one upload", "rank one, ten uploads", "rank one, later half pooled"),
        ("sums, everybody else known",),
        "the block that opens with the taste vector is read off the sums",
    ),
    Applied(
        ("a few uploads",),
        ("gender from", "age from", "occupation from"),
        "attributes are learned from what sums leave of people",
    ),
    Applied(("count from values",), ("count from sums",), "read off the block of counts"),
    Applied(("timing of finish",), ("timing of finish",), "the same attack, which the budget does not cover"),
    Applied(
        ("linkage of rounds",),
        ("one masked table alone", "keys of two attempts"),
        "messages are signed, so that rounds are linked anyway; tables and keys add nothing",
    ),
    Applied(
        ("linkage after re-enrolment",),
        ("known again in a second run",),
        "the same person in a second run, by what the sums leave",
    ),
    Applied(
        ("malicious V",),
        ("profile or nothing, crafted table", "one rating, crafted table"),
        "tables that make blocks as long as the clip allows, or about one item alone",
    ),
    Applied(
        ("difference",),
        ("difference of two cohorts", "one rating there or not"),
        "sums that differ in one device, or in one rating",
    ),
    Applied(("promotion",), ("promotion",), "made-up ratings, tables at the clip, and one beyond it"),
    Applied(
        ("canaries",),
        ("profile or nothing", "profiles or nothing, one run", "one rating there or not, one run"),
        "devices that are there or not by coin: in many runs, and in one",
    ),
)
KINDS = ("malicious V", "difference", "promotion", "canaries")  # attacks that are not classes of `attacks`


def names_of_suite() -> list[str]:
    """Return the names of all attacks on the gradient protocols, without the suffixes of combined attacks."""
    attacks = (*EXISTENCE, *VALUE, *MODEL, *METADATA)
    bare = [attack.name.removesuffix(", items never reported").partition(" + ")[0] for attack in attacks]
    others = (PersonFromReports().name, FinishTiming().name, LinkRounds().name, LinkEnrolments().name, *KINDS)
    return list(dict.fromkeys([*bare, *others]))
