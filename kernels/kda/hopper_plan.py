"""Plan the fused kernels of Kimi Delta Attention: those of the delta rule, after operands of every tile are made.

A program a tile makes its operands, and the walks for o and for dv are those of the delta rule. States before tiles
are kept for backward, whose last kernel takes them and D, and has a program for every 64 channels of a tile.
"""

from __future__ import annotations

from tflabench.kernels.delta.hopper_plan import DeltaWalkShape

VALUES = 192  # of a tile beside its matrices, float32: the decays of 128 channels, roots of the strengths of 64 steps
DECAY_BYTES = 4  # of one of these
STATE_REGISTERS = 232  # without a score partition


def outputs_shape(parts: int, *, keeps: bool) -> DeltaWalkShape:
    """Return how a program of the walk for o is divided; keeps: it writes states for backward."""
    return DeltaWalkShape(parts, num_value_stages=2 if keeps or parts > 1 else 3, state_registers=STATE_REGISTERS)


def values_shape(parts: int) -> DeltaWalkShape:
    """Return how a program of the walk for dv is divided."""
    return DeltaWalkShape(parts, state_registers=STATE_REGISTERS)
