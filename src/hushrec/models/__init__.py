"""What is learned: the models by name, each with its options. Importing this imports none of their maths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from hushrec.errors import ParameterError
from hushrec.options import Option, imported
from hushrec.plugins import Registry

if TYPE_CHECKING:
    from hushrec.arrays import FloatArray
    from hushrec.models.mf import MatrixFactorization


@dataclass(frozen=True)
class ModelDeclaration:
    """A model as settings and the command line know it.

    `predicts` is what comes out: the value of a rating, or an order of items from who met what. `implementation` is
    the place of its class, which has a classmethod `from_options(options, **item_facts)`; `item_facts`, where there is
    one, the place of the function that makes those from a data set's public item attributes:
    (ratings, options) → keyword arguments. `sent_facts` makes the same from what a server sends of its items.
    `without_privacy` holds the defaults that differ under a protocol that is not private. A model of another package
    names the protocols that can send what it learns from in `spoken_by`, and the `engines` that compute it; the others
    only know the models of hushrec.
    """

    name: str
    summary: str
    predicts: Literal["rating", "ranking"]
    options: tuple[Option, ...]
    implementation: str
    item_facts: str | None = None
    sent_facts: str | None = None
    public_ratings: bool = False  # whether it learns from ratings that anybody may see
    lists: str = "what few people rated is drawn toward the person's own mean"
    without_privacy: Mapping[str, Any] = field(default_factory=dict)
    spoken_by: tuple[str, ...] = ()  # protocols, besides those that name this model themselves
    engines: tuple[str, ...] = ()  # empty: every engine of the protocol

    def make(self, options: dict[str, Any], ratings: Any) -> Any:
        """The model with these options, and with what is public about the items of this data set."""
        if ratings.public is not None and not self.public_ratings:
            raise ParameterError(f"model {self.name} does not use public ratings. Leave public out, or use model gp.")
        facts = {} if self.item_facts is None else imported(self.item_facts)(ratings, options)
        return imported(self.implementation).from_options(options, **facts)


def _vector_options(factors: int, step: float, described: str | None = None) -> tuple[Option, Option]:
    return (
        Option("factors", int, "Numbers in each vector.", factors),
        Option("step", float, "First step size times the number of ratings.", step, described),
    )


AT_LEAST = Option(
    "at_least", float, "The lowest rating that counts as an action.", default_text="any rating"
)  # of every model that ranks

_OWN = (
    ModelDeclaration(
        "mf",
        "ratings",
        "rating",
        (
            *_vector_options(50, 0.4),
            Option(
                "no_fallback",
                bool,
                "Predict from random vectors, as the paper does, where training has not seen a person or an item.",
                False,
            ),
        ),
        "hushrec.models.mf:MatrixFactorization",
    ),
    ModelDeclaration(
        "bpr",
        "who met what",
        "ranking",
        (*_vector_options(10, 4.0, "4, plain: 10"), AT_LEAST),
        "hushrec.models.bpr:PairwiseRanking",
        without_privacy={"step": 10.0},
    ),
    ModelDeclaration(
        "fm",
        "ratings, with item attributes",
        "rating",
        (
            *_vector_options(50, 0.2),
            Option("order", int, "How many columns interact at once, 2 or 3.", 2),
            Option("attributes", str, "Names of item attributes to learn from, or none.", default_text="all"),
        ),
        "hushrec.models.fm:FactorizationMachine",
        item_facts="hushrec.data.side:machine_columns",
        sent_facts="hushrec.models.fm:sent_columns",
    ),
    ModelDeclaration(
        "gp",
        "ratings, by a Gaussian process over the items",
        "rating",
        (),
        "hushrec.models.gaussian_process:GaussianProcess",
        item_facts="hushrec.models.item_columns:columns_of",
        sent_facts="hushrec.models.item_columns:sent_columns",
        public_ratings=True,
        lists="sorted by popularity, the item's quality and the person's taste, all from what was released",
    ),
    ModelDeclaration(
        "audience",
        "who met what, by the audiences of the items",
        "ranking",
        (AT_LEAST,),
        "hushrec.models.audience_predictor:Audience",
        item_facts="hushrec.models.item_columns:columns_of",
        sent_facts="hushrec.models.item_columns:sent_columns",
    ),
)

MODELS: Registry[ModelDeclaration] = Registry("models", ((model.name, model) for model in _OWN))


def find_model(name: str) -> ModelDeclaration:
    """Return the declaration of the model of that name."""
    if name not in MODELS:
        raise ParameterError(f"model must be one of {', '.join(MODELS)}, got {name}.")
    return MODELS[name]


def make_model(
    name: str, n_factors: int, *, order: int | None = None, attributes: FloatArray | None = None
) -> MatrixFactorization:
    """A model of vectors; `order` (2 unless given) and `attributes` are for `fm` alone."""
    if name == "fm":
        options: dict[str, Any] = {"factors": n_factors, "order": 2 if order is None else order}
        return imported(find_model(name).implementation).from_options(options, attributes=attributes)  # type: ignore[no-any-return]
    if order is not None or attributes is not None:
        raise ParameterError(f"model {name} uses neither order nor attributes. Leave them out.")
    return imported(find_model(name).implementation).from_options({"factors": n_factors})  # type: ignore[no-any-return]
