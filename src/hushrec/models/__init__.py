"""What is learned: plain maths without privacy, messages, or a loop over clients."""

from hushrec.errors import ParameterError
from hushrec.models.bpr import PairwiseRanking
from hushrec.models.mf import MatrixFactorization

Model = MatrixFactorization | PairwiseRanking

MODELS: dict[str, type[Model]] = {"mf": MatrixFactorization, "bpr": PairwiseRanking}


def make_model(name: str, n_factors: int) -> Model:
    """The model of that name."""
    if n_factors < 1:
        raise ParameterError(f"n_factors must be at least 1, got {n_factors}.")
    if name not in MODELS:
        raise ParameterError(f"model must be one of {', '.join(MODELS)}, got {name}.")
    return MODELS[name](n_factors)
