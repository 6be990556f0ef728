"""The engine `cpu`: it simulates all devices on the processor's cores, in kernels compiled by Numba."""
