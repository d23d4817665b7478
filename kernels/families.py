"""The families of linear RNNs, each a folder here: what operations ask of one. Needs no torch.

docs/add-a-family.md says what a folder has, file by file.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .delta.gating import DeltaGate
from .gla.gating import ChannelGate
from .kda.gating import KdaGate
from .types import Gate, Gating

if TYPE_CHECKING:
    from .common.contract import Kernels


@dataclass(frozen=True, eq=False)
class Family:
    """A family of linear RNNs, which computes the gates of one class.

    Attributes:
        gating: their class; its `family` is the name here.
        reference: returns the module with the family in PyTorch, which any device runs:
            chunkwise(q, k, v, f, i, initial, *, gate, scale, chunk_size, state_dtype) -> (h, State), with gradients,
            and decode(q, k, v, f, i, state, *, gate, scale) -> (h, State) of one step (B, H, d). For
            sequences over several ranks it has log_decay(gate, f, i, v) too, of all steps, (B, H, 1 or d_qk, 1), or
            None where steps multiply a state by a matrix from the left.
        kernels: implementation -> a function that returns its `Kernels`, and imports what it needs.
        tried: group of implementations -> these, in the order in which they are tried; "auto" is one of them.
        reference_chunk_size: the chunk size of the reference where none is given.
        decode_kernels: returns the module with the decode step in Triton, None where there is none.
        batch_from: documents of one length of at least as many steps are faster as a batch than as one sequence.
    """

    gating: type[Gating]
    reference: Callable[[], Any]
    kernels: dict[str, Callable[[], Kernels]] = field(default_factory=dict[str, "Callable[[], Kernels]"])
    tried: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    reference_chunk_size: int = 64
    decode_kernels: Callable[[], Any] | None = None
    batch_from: float = 512

    @property
    def implementations(self) -> tuple[str, ...]:
        """Return what `implementation` may be."""
        return tuple(dict.fromkeys(("auto", "reference", *self.tried, *self.kernels)))


def _module(name: str) -> Callable[[], Any]:
    return functools.partial(importlib.import_module, f"{__package__}.{name}")


def _kernels(module: str, **properties: Any) -> Callable[[], Kernels]:
    """Return what makes the kernels of a module: its functions by the names of `Kernels`, and these properties."""

    def made() -> Kernels:
        from .common.contract import Kernels  # which needs torch

        return Kernels.of(importlib.import_module(f"{__package__}.{module}"), **properties)

    return made


def _in_levels(levels: int) -> Callable[[], Kernels]:
    return lambda: importlib.import_module(f"{__package__}.scalar.tfla.chunkwise").kernels(levels)


RARE_STATES = 512  # steps between two states of fused kernels: they are float32, and larger than those of others

FAMILIES: dict[str, Family] = {}


def register(family: Family) -> Family:
    """Add a family, or replace the one of its name, and return it."""
    FAMILIES[family.gating.family] = family
    return family


def family_of(gate: Gating) -> Family:
    """Return the family that computes these gates."""
    return FAMILIES[gate.family]


register(
    Family(
        Gate,
        _module("scalar.reference"),
        {
            "hopper": _kernels("scalar.hopper.chunkwise", shares_heads=True, adds_skip=True, auto_from=RARE_STATES),
            "tfla_xl": _in_levels(2),
            "tfla_limit": _in_levels(1),
        },
        {"auto": ("hopper", "tfla_xl", "tfla_limit"), "tfla": ("tfla_xl", "tfla_limit")},
        decode_kernels=_module("scalar.step_kernel"),
    )
)
register(
    Family(
        ChannelGate,
        _module("gla.reference"),
        {"hopper": _kernels("gla.hopper.chunkwise", auto_from=RARE_STATES), "tfla": _kernels("gla.chunkwise")},
        {"auto": ("hopper", "tfla")},
        reference_chunk_size=32,
        batch_from=float("inf"),
    )
)
register(
    Family(
        DeltaGate,
        _module("delta.reference"),
        {
            "hopper": _kernels("delta.hopper.chunkwise", shares_heads=True, auto_from=RARE_STATES),
            "tfla": _kernels("delta.chunkwise", shares_heads=True),
        },
        {"auto": ("hopper", "tfla")},
        decode_kernels=_module("delta.step_kernel"),
        batch_from=64,
    )
)
register(
    Family(
        KdaGate,
        _module("delta.reference"),
        {
            "hopper": _kernels("kda.hopper.chunkwise", shares_heads=True, auto_from=RARE_STATES),
            "tfla": _kernels("kda.chunkwise"),
        },
        {"auto": ("hopper", "tfla")},
        reference_chunk_size=32,
        decode_kernels=_module("delta.step_kernel"),
        batch_from=64,
    )
)
