"""What a server of a network run can and cannot know, in plain words: one text for the pages and docs/privacy.md."""

from dataclasses import dataclass

HEADING = "## What the server of a network run can and cannot know"


@dataclass(frozen=True)
class Knowledge:
    """Sentences about a server that keeps everything it receives, under one protocol."""

    can: tuple[str, ...]
    cannot: tuple[str, ...]


KNOWLEDGE = {
    "sdcf": Knowledge(
        can=(
            "That a device takes part, and when: every request is signed with the device's key.",
            (
                "Which items a device reports in each round. Chance chooses them; most are items that the person never "
                "rated."
            ),
            (
                "A person's taste: all numbers of one upload point along it. A server that looks can guess what else "
                "they would like."
            ),
            (
                "Which of the reported items are really rated, and how: real and made-up numbers differ in size, and a "
                "real one leads to the same rating in every round."
            ),
            "About how many items a person rated: as many as there are real numbers among those sent, and some more.",
            (
                "Something of the items that were never reported: a device learns from them too, and people who rated "
                "the same things rated them as well."
            ),
            "Who comes back with a new key: what they seem to have rated is what they had rated before.",
            (
                "Every rating it asks for, if it cheats: crafted item vectors make a person's vector show which items "
                "are rated, and how, reported or not."
            ),
        ),
        cannot=(
            (
                "Which items a person rated, from the list of reported items alone: over all rounds that list is at "
                "most e^ε times more likely under one profile than under another, with the ε that the person chose."
            ),
            "How many items a person rated, from how many are reported: devices act as if it were the public cap.",
            "For certain, as long as it follows the protocol: which of the items that were never reported are rated.",
            "A person's name, ratings, budget or ledger: no message has a place for them.",
            (
                "The reports of past rounds, if it runs this program as it is: they are erased when their sum is "
                "published. Nobody outside can check that."
            ),
        ),
    )
}


def as_markdown() -> str:
    """The section of docs/privacy.md."""
    parts = [HEADING]
    for protocol, knowledge in KNOWLEDGE.items():
        for verb, sentences in (("can", knowledge.can), ("cannot", knowledge.cannot)):
            parts.append(f"Under `{protocol}`, it {verb} know:")
            parts.append("\n".join(f"- {sentence}" for sentence in sentences))
    return "\n\n".join(parts)
