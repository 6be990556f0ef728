"""Engine `cpu`: all devices at once on the processor's cores, in kernels compiled by Numba."""
