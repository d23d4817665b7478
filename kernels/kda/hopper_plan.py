"""Plan the fused kernels of Kimi Delta Attention: those of the delta rule, after operands of every tile are made.

A program a tile makes its operands, and the walks for o and for dv are those of the delta rule. States before tiles
are kept for backward, whose last kernel takes them and D, and has a program for every 64 channels of a tile.
"""

VALUES = 192  # of a tile beside its matrices, float32: the decays of 128 channels, roots of the strengths of 64 steps
DECAY_BYTES = 4  # of one of these
