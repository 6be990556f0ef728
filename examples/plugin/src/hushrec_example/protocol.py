"""The declarations of a protocol and of its model. `hushrec --help` imports them: nothing heavy is imported here."""

from hushrec.models import ModelDeclaration
from hushrec.options import Option
from hushrec.protocols.protocol import Protocol, ServerKnowledge, Wording

MEANS = ModelDeclaration("means", "how items are rated on average", "rating", (), "hushrec_example.means:Means")

ONE_RATING = Protocol(
    name="one-rating",
    summary="one rating of each device, as a table with Laplace noise",
    row_label="one rating",
    is_private=True,
    options=(Option("epsilon", float, "Budget of one person's whole profile.", 4.0),),
    models=("means",),
    implementation="hushrec_example.parties:OneRating",
    messages="hushrec_example.parties",
    terms="one-rating.terms",
    wording=Wording(
        label=lambda budget: f"one-rating ε={budget['epsilon']:g}",
        protects=lambda budget: f"whole profile: ε {budget['epsilon']:g}",
        numbers=lambda budget: [f"ε = {budget['epsilon']:g} (δ = 0, {budget['rounds']} round)"],
    ),
    knowledge=ServerKnowledge(can=("Which devices take part.",), cannot=("Which item a device rated, beyond ε.",)),
)
