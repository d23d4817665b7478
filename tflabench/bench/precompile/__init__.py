"""Compiles kernels ahead, on CPU cores that a GPU's measurements leave idle, into Triton's cache on disk."""
