"""The engine of compiled kernels, for the CPU."""
