"""Gated Linear Attention (Yang et al. 2024): a log decay a step and channel of q and k, not one a head."""
