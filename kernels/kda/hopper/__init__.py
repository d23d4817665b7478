"""The fused kernels of Kimi Delta Attention for Hopper, in Gluon."""
