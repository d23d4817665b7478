"""Versions of installed packages."""

from __future__ import annotations

from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass

PACKAGES = (
    "torch",
    "triton",
    "numpy",
    "fla-core",
    "flash-linear-attention",
    "mlstm_kernels",
    "lightning_attn",
    "flash-attn",
    "flash_attn_3",
    "flash-attn-4",
    "mamba-ssm",
    "causal-conv1d",
)


@cache
def package_version(name: str) -> str | None:
    """Installed version of a distribution, None where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
