"""Triton kernels, and the code that chooses between a kernel and torch's own layer."""
