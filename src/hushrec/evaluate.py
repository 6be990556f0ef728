"""Measures of accuracy on plain arrays, usable without the rest of hushrec."""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def rmse(predicted: FloatArray, actual: FloatArray) -> float:
    """Root of the mean squared error."""
    _check(predicted, actual)
    return float(np.sqrt(np.mean((predicted - actual) ** 2)))


def mae(predicted: FloatArray, actual: FloatArray) -> float:
    """Mean absolute error."""
    _check(predicted, actual)
    return float(np.mean(np.abs(predicted - actual)))


def rating_metrics(predicted: FloatArray, actual: FloatArray) -> dict[str, float]:
    """Both of the above, by the names that results use."""
    return {"rmse": rmse(predicted, actual), "mae": mae(predicted, actual)}


def _check(predicted: FloatArray, actual: FloatArray) -> None:
    if predicted.shape != actual.shape or predicted.size == 0:
        raise ValueError(
            f"predicted and actual must be of one shape and not empty, got {predicted.shape} and {actual.shape}."
        )
