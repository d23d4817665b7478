"""NX-AI's xlstm: xLSTMLarge, whose backend is that of mlstm_kernels, and the cell of the smaller blocks."""

from __future__ import annotations

from . import mlstm_kernels
from .core import Installed, Replacement

VERSIONS = {"xlstm": ("2.0.6",), **mlstm_kernels.VERSIONS}


def plan(handle: Installed, force: bool) -> list[Replacement]:
    """Return what to replace."""
    return mlstm_kernels.backend(handle)
