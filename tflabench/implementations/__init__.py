"""Implementations: their interface, the registry, and the bundled kernels behind it."""
