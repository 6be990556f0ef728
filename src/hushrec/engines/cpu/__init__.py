"""Engine `cpu`: all devices at once on the processor's cores, in Numba."""
