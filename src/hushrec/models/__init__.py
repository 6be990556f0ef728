"""What is learned: plain maths without privacy, messages, or a loop over clients."""

from hushrec.arrays import FloatArray
from hushrec.errors import ParameterError
from hushrec.models.bpr import PairwiseRanking
from hushrec.models.fm import FactorizationMachine
from hushrec.models.mf import MatrixFactorization

Model = MatrixFactorization | PairwiseRanking | FactorizationMachine

MODELS: dict[str, type[Model]] = {"mf": MatrixFactorization, "bpr": PairwiseRanking, "fm": FactorizationMachine}


def make_model(name: str, n_factors: int, *, order: int | None = None, attributes: FloatArray | None = None) -> Model:
    """The model of that name; `order` (2 unless given) and `attributes` are for `fm` alone."""
    if n_factors < 1:
        raise ParameterError(f"n_factors must be at least 1, got {n_factors}.")
    if name not in MODELS:
        raise ParameterError(f"model must be one of {', '.join(MODELS)}, got {name}.")
    if name == "fm":
        return FactorizationMachine(n_factors, 2 if order is None else order, attributes)
    if order is not None or attributes is not None:
        raise ParameterError(f"model {name} uses neither order nor attributes. Leave them out.")
    return MODELS[name](n_factors)
