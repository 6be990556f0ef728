"""The registry of models, with the options and the import path of each. Importing this package loads no model code."""

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
    """The registry entry of a model: its options, and where to import its code from.

    *Facts* are public data about the items, such as their attributes: a dict of keyword arguments for the model's
    `from_options(options, **facts)`. A model without a function for facts is made from its options alone.
    `lists` is a clause that says how recommendation lists are sorted if the model predicts ratings; the command prints
    it below the metrics of a run.
    """

    name: str
    summary: str
    predicts: Literal["rating", "ranking"]  # rating values, or an order of items from one-class data
    options: tuple[Option, ...]
    implementation: str  # import path of the model's class
    item_facts: str | None = None  # import path of a function (ratings, options) → facts of a data set
    sent_facts: str | None = None  # for network runs: path of a function (attributes, titles, detail columns) → facts
    public_ratings: bool = False  # whether the model also learns from public ratings
    lists: str = "predictions of items with few ratings are shrunk toward the person's own mean"
    without_privacy: Mapping[str, Any] = field(default_factory=dict)  # replaces defaults in runs without privacy
    spoken_by: tuple[str, ...] = ()  # for a plug-in: the protocols that can train this model
    engines: tuple[str, ...] = ()  # engines that can compute a plug-in model; empty means every engine of the protocol

    def make(self, options: dict[str, Any], ratings: Any) -> Any:
        """Return the model with these options for the items of the data set `ratings`.

        Raise `ParameterError` if `ratings` include public ratings and the model cannot use them.
        """
        if ratings.public is not None and not self.public_ratings:
            raise ParameterError(f"model {self.name} cannot use public ratings. Train without them, or use model gp.")
        facts = {} if self.item_facts is None else imported(self.item_facts)(ratings, options)
        return imported(self.implementation).from_options(options, **facts)


def _vector_options(factors: int, step: float, described: str | None = None) -> tuple[Option, Option]:
    return (
        Option("factors", int, "Length of user and item vectors.", factors),
        Option(
            "step",
            float,
            "First step size, multiplied by the number of ratings (sdcf: of gradients in a round).",
            step,
            described,
        ),
    )


AT_LEAST = Option(
    "at_least", float, "The lowest rating to learn from; lower ones are left out.", default_text="any rating"
)  # an option of every model that ranks

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
                "Predict from random vectors, as the paper does, for people and items without training ratings.",
                False,
            ),
        ),
        "hushrec.models.mf:MatrixFactorization",
    ),
    ModelDeclaration(
        "bpr",
        "one-class data",
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
            Option("order", int, "Largest number of columns (user, item, attributes) that interact, 2 or 3.", 2),
            Option("attributes", str, "Names of the item attributes to learn from, or none.", default_text="all"),
        ),
        "hushrec.models.fm:FactorizationMachine",
        item_facts="hushrec.data.side:machine_columns",
        sent_facts="hushrec.models.fm:sent_columns",
    ),
    ModelDeclaration(
        "gp",
        "ratings, by a Gaussian process over the items",
        "rating",
        (
            Option(
                "rating_levels",
                int,
                "Number of different ratings that people can give, such as 2 for likes and dislikes.",
                default_text="from the scale and the ratings; on the network 5",
            ),
            Option(
                "ratings_per_person",
                float,
                "Number of ratings that a person has on average; changes the plan if below 65.",
                default_text="counted in the ratings; on the network many",
            ),
        ),
        "hushrec.models.gaussian_process:GaussianProcess",
        item_facts="hushrec.models.item_columns:columns_of",
        sent_facts="hushrec.models.item_columns:sent_columns",
        public_ratings=True,
        lists="sorted by the item's popularity and quality, as estimated from noisy sums, and the person's taste",
    ),
    ModelDeclaration(
        "audience",
        "one-class data, by the audiences of the items",
        "ranking",
        (AT_LEAST,),
        "hushrec.models.audience_predictor:Audience",
        item_facts="hushrec.models.item_columns:columns_of",
        sent_facts="hushrec.models.item_columns:sent_columns",
    ),
)

MODELS: Registry[ModelDeclaration] = Registry("models", ((model.name, model) for model in _OWN))


def find_model(name: str) -> ModelDeclaration:
    """Return the declaration of the model called `name`; raise `ParameterError` if there is none."""
    if name not in MODELS:
        raise ParameterError(f"model must be one of {', '.join(MODELS)}, got {name}.")
    return MODELS[name]


def make_model(
    name: str, n_factors: int, *, order: int | None = None, attributes: FloatArray | None = None
) -> MatrixFactorization:
    """Return model `mf`, `bpr` or `fm`. Only `fm` takes `order` (default 2) and `attributes`."""
    if name != "fm" and (order is not None or attributes is not None):
        raise ParameterError(f"order and attributes must be left out for model {name}; only model fm uses them.")
    options = {"factors": n_factors, "order": 2 if order is None else order}
    facts = {"attributes": attributes} if name == "fm" else {}
    return imported(find_model(name).implementation).from_options(options, **facts)  # type: ignore[no-any-return]
