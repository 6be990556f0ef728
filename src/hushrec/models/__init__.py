"""What is learned: plain maths without privacy, messages, or a loop over clients."""

from hushrec.errors import ParameterError
from hushrec.models.mf import MatrixFactorization

Model = MatrixFactorization


def make_model(name: str, n_factors: int) -> Model:
    """The model of that name."""
    if n_factors < 1:
        raise ParameterError(f"n_factors must be at least 1, got {n_factors}.")
    if name != "mf":
        raise ParameterError(f"model must be mf, got {name}.")
    return MatrixFactorization(n_factors)
