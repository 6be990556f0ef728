"""The two array types of hushrec: 64-bit floating-point numbers and 64-bit integers."""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
