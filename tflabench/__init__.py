"""Kernel benchmark and roofline analysis for Tiled Flash Linear Attention (TFLA)."""

__version__ = "0.1.0"
