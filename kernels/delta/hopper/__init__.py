"""The fused kernels of the delta rules for Hopper, in Gluon."""
