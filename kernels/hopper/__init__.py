"""Fused kernels for Hopper in Gluon: the state stays on chip over tiles (walk.py); `chunkwise.kernels` is the entry."""
