"""Fused kernels for Hopper in Gluon: the state stays on chip over tiles; `chunkwise.kernels` is the entry."""
