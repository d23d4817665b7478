"""The fused kernels of Gated Linear Attention for Hopper, in Gluon."""
