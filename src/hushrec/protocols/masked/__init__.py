"""The declaration of the protocol `masked`, in which the server sees only noisy sums of the devices' clipped tables."""

from hushrec.options import Option
from hushrec.protocols.masked import wording
from hushrec.protocols.protocol import REFERENCE, Protocol, ServerKnowledge, Wording

MASKED = Protocol(
    name="masked",
    summary="one clipped, noised and masked table of integers per round, of which the server learns only sums",
    row_label="masked",
    is_private=True,
    options=(
        Option("epsilon", float, "Budget for one person's whole profile over all rounds; inf: no noise.", 8.0),
        Option(
            "delta",
            float,
            "Probability with which the budget may be exceeded.",
            default_text="1e-6, or 1/(10 devices) if smaller",
        ),
        Option("dropout", float, "Fraction of the devices that are absent from a round.", 0.0, is_simulated=True),
        Option(
            "survivors",
            float,
            "Smallest fraction of the devices with which a round may end; the noise is sized for these devices.",
            default_text="the fraction that almost surely remains after dropout, on the network 0.8",
        ),
        Option(
            "corrupt",
            float,
            "Fraction of the surviving devices that may be hostile and add no noise.",
            default_text="0, on the network 0.05",
        ),
        Option(
            "reserve",
            float,
            "Share of the budget that is kept for repeated attempts.",
            default_text="0, on the network 0.2",
        ),
        Option(
            "evaluation",
            float,
            "Share of the budget for measuring accuracy on held-out ratings of the devices.",
            default_text="0, on the network 0.02 where enough devices are expected",
            models=("gp",),
        ),
        Option(
            "repeats",
            int,
            "Number of rounds into which each round is divided, so that a spoiled sum costs less of the budget.",
            1,
        ),
        Option(
            "own_epsilon",
            float,
            "Largest budget that a person allows one run to spend, for their whole profile, at a delta of at most 1e-6"
            " (inf: even a run without noise).",
            default_text="epsilon",
            personal=True,
            may_be_infinite=True,
            least=0,
            device_name="epsilon",
        ),
        Option(
            "least_cohort",
            int,
            "Smallest number of devices in a sum that each person accepts (on the network at least 3).",
            default_text="that of the run",
            personal=True,
            least=3,  # in a sum of two, each device could compute the other one's table
        ),
    ),
    models=("gp", "audience"),
    engines={
        "cpu": "hushrec.engines.cpu.masked:CpuMaskedEngine",
        "reference": REFERENCE,
        "ray": "hushrec.engines.ray.engine:ray_engine",
    },
    parts_engine="hushrec.engines.sharded.masked:ShardedMaskedEngine",
    implementation="hushrec.protocols.masked.protocol:Masked",
    messages="hushrec.protocols.masked.messages",
    terms="masked.terms",
    costs="hushrec.capacity:masked_training",
    auditor="hushrec.audit.auditors:MASKED",
    wording=Wording(wording.label, wording.protects, wording.numbers),
    unit="table",
    usual={"own_epsilon": 8.0, "least_cohort": 3},
    whole_catalogue=True,
    knowledge=ServerKnowledge(
        risk="Whoever runs this server sees that you take part, and sums over many devices with noise in them. These"
        " sums reveal little about what you rated; how little is what you choose next.",
        choice="The level limits what all your reports together can reveal about your ratings. You can change it at any"
        " time, and nobody sees the change.",
        can=(
            "That a device takes part, in which rounds, when it reports and from which network address.",
            "Which devices drop out of an attempt, and in which phase.",
            "Sums of many devices' tables with their noise, and what follows. The run says how many devices at least.",
        ),
        cannot=(
            "One person's table: only sums are without masks, unless more devices help the server than the run states.",
            "Whether a person rated an item, how they rated it, or how many they rated, beyond what the budget allows.",
            "A person's own budget, and whether it is used up: a device that cannot pay sends zeros and noise.",
            "A person's taste or their recommendations: both are computed on the device.",
        ),
    ),
)
