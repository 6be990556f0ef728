"""The declarations of the gradient protocols `plain`, `isgld` and `sdcf`, whose devices report item gradients."""

from typing import Any

from hushrec.options import Option
from hushrec.protocols.gradient import wording
from hushrec.protocols.protocol import REFERENCE, Protocol, ServerKnowledge, Wording

_SHARED: dict[str, Any] = {
    "messages": "hushrec.protocols.gradient.messages",
    "terms": "gradient.terms",
    "engines": {
        "cpu": "hushrec.engines.cpu.engine:CpuEngine",
        "gpu": "hushrec.engines.gpu.engine:GpuEngine",
        "reference": REFERENCE,
        "ray": "hushrec.engines.ray.engine:ray_engine",
    },
    "parts_engine": "hushrec.engines.sharded.gradient:ShardedGradientEngine",
    "auditor": "hushrec.audit.auditors:GRADIENT",
}
ROUNDS = Option("rounds", int, "Rounds to train.", 100)

PLAIN = Protocol(
    name="plain",
    summary="gradients of the rated items as they are",
    row_label="plain, not private",
    is_private=False,
    options=(ROUNDS,),
    models=("mf", "bpr", "fm"),
    implementation="hushrec.protocols.gradient.protocols:Plain",
    **_SHARED,
    wording=Wording(lambda _: "plain, not private", lambda _: "nothing", wording.numbers, in_label=()),
)

ISGLD = Protocol(
    name="isgld",
    summary="gradients of the rated items, with Laplace noise on ratings",
    row_label="isgld",
    is_private=True,
    options=(
        Option("epsilon", float, "Privacy budget for the value of one rating.", 4.0, personal=True),
        Option("clamp", bool, "Clip noisy ratings to the scale.", False, personal=True),
        ROUNDS,
    ),
    models=("mf", "fm"),
    implementation="hushrec.protocols.gradient.protocols:Isgld",
    unit="rating",
    **_SHARED,
    wording=Wording(
        wording.isgld_label,
        lambda budget: f"one rating's value: ε {float(budget['epsilon']):g}",
        wording.numbers,
        in_label=("epsilon", "clamp"),
    ),
    compared_with=("plain",),
)

SDCF = Protocol(
    name="sdcf",
    summary="noisy gradients of items selected by randomized response",
    row_label="sdcf",
    is_private=True,
    options=(
        Option("epsilon_i", float, "Budget for the selection of items in one round.", 4.0, personal=True),
        Option(
            "epsilon_p", float, "Budget for the selections of all rounds.", default_text="2 × epsilon-i", personal=True
        ),
        Option(
            "epsilon_g",
            float,
            "How tightly the size of fake errors is limited: a larger value lowers the limit, and 0 sets none. A"
            " parameter, not a privacy guarantee.",
            4.0,
            models=("mf", "fm"),
            personal=True,
        ),
        Option(
            "profile_cap",
            int,
            "Public number of ratings for which every device calibrates its selection, to hide how many it has.",
            default_text="each person's own number; on the network 600, or half of the items if fewer",
        ),
        Option(
            "reports_per_client",
            float,
            "Mean number of items that a device reports per round.",
            default_text="ratings / users; on the network one item in twenty",
        ),
        Option(
            "epoch_rounds",
            int,
            "Draw new permanent bits after this many rounds, which costs epsilon-p again.",
            default_text="never",
        ),
        ROUNDS,
    ),
    models=("mf", "bpr", "fm"),
    implementation="hushrec.protocols.gradient.protocols:Sdcf",
    **_SHARED,
    costs="hushrec.capacity:sdcf_training",
    unit="selection",
    usual={},
    wording=Wording(
        wording.sdcf_label,
        lambda budget: f"list of items: ε {float(budget['epsilon']):g} profile-level, all rounds",
        wording.numbers,
        in_label=("epsilon_i", "epsilon_g", "profile_cap"),
    ),
    compared_with=("plain", "isgld"),
    knowledge=ServerKnowledge(
        risk="Whoever runs this server can work out what you like, most of what you rated, and how you rated it."
        " Take part only if you would tell them that.",
        choice="One thing can be limited: what the list of items that your device reports says about which ones"
        " you rated. Chance adds others to it. The level can be changed until your first round.",
        can=(
            "That a device takes part, and when: every request is signed with the device's key.",
            (
                "Which items a device reports in each round. Chance chooses them; most are items that the person never "
                "rated."
            ),
            (
                "A person's taste: all gradients of one report point along the user vector. From it a server can "
                "guess what else the person would like."
            ),
            (
                "Which of the reported items are really rated, and how: real and fake errors differ in size, and a "
                "real one leads to the same rating in every round."
            ),
            "About how many items a person rated: slightly more than the number of real errors among those reported.",
            (
                "Something about the items that were never reported: a device learns from those ratings too, and "
                "people who rated the same items rated them as well."
            ),
            "Who comes back with a new key: the items that seem to be rated are the same as before.",
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
    ),
)
