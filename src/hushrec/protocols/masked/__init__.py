"""The masked protocol: devices add up clipped, noised tables of integers; only sums are seen. Declaration only."""

from hushrec.options import Option
from hushrec.protocols.masked import wording
from hushrec.protocols.protocol import Protocol, ServerKnowledge, Wording

MASKED = Protocol(
    name="masked",
    summary="sums only: one clipped, noised, masked table of integers per round",
    row_label="masked",
    is_private=True,
    options=(
        Option("epsilon", float, "Budget of one person's whole profile over the whole training; inf: no noise.", 8.0),
        Option("delta", float, "How often the budget may fail.", default_text="1e-6, or 1/(10 devices) if smaller"),
        Option("dropout", float, "Part of the devices that are absent from a round.", 0.0),
        Option(
            "survivors",
            float,
            "Smallest part of the devices that a round may end with: noise is sized for them.",
            default_text="what dropout surely leaves",
        ),
        Option("corrupt", float, "Part of these that may add no noise.", 0.0),
    ),
    models=("gp", "audience"),
    engines={
        "cpu": "hushrec.engines.cpu.masked:CpuMaskedEngine",
        "reference": "hushrec.engines.masked_reference:MaskedReferenceEngine",
    },
    implementation="hushrec.protocols.masked.protocol:Masked",
    wording=Wording(wording.label, wording.protects, wording.numbers),
    whole_catalogue=True,
    knowledge=ServerKnowledge(),
)
