"""The fused kernels as `kernels.api` calls them: what they take, and how often they materialise a state."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tflabench.kernels.tfla.config import architecture, multiprocessors
from tflabench.kernels.types import Gate

if TYPE_CHECKING:
    from tflabench.kernels.api import Kernels

D_QK = (64, 128, 192, 256)
D_HV = (64, 128, 256, 512)


def kernels() -> Kernels:
    """Imported only where it can run: Gluon is part of Triton from 3.6 on."""
    from tflabench.kernels.api import Kernels

    from .backward import backward
    from .forward import empty_saved, forward

    return Kernels(
        forward=forward,
        backward=backward,
        empty_saved=empty_saved,
        refuses=refuses,
        default_chunk_size=default_chunk_size,
        shares_heads=True,
        adds_skip=True,
        cuts_by_itself=True,
    )


def refuses(q: Tensor, v: Tensor, *, gate: Gate, chunk_size: int, config: Any = None) -> str | None:
    """Why these kernels cannot run on such q (B, H, T, d_qk) and v (B, H, T, d_hv), or None if they can."""
    del gate  # all of them
    if q.device.type != "cuda" or architecture(q.device) != 90:
        return f"needs a GPU of compute capability 9.0 (H100, H200), not {_name(q.device)}"
    if q.dtype not in (torch.bfloat16, torch.float16):
        return f"takes bfloat16 and float16, not {q.dtype}"
    for name, d, known in (("d_qk", q.shape[-1], D_QK), ("d_hv", v.shape[-1], D_HV)):
        if d not in known:
            return f"takes a {name} of {', '.join(map(str, known))}, not {d}"
    if chunk_size % 64:
        return f"takes a chunk_size that is a multiple of 64, its tile, not {chunk_size}"
    if config is not None:
        return f"takes no config, not a {type(config).__name__}"
    return None


def default_chunk_size(q: Tensor, v: Tensor, *, gate: Gate, backward: bool = True) -> int:
    """L that fills the chip: the whole sequence where batch * heads does, else chunks of which each is a program.

    With n segments a walk takes (rounds of programs) * (tiles a segment) tile times, at one program a multiprocessor;
    then a state pass goes over all segments but one. n is that of the next power of two of tiles: torch.compile, for
    which T may be a symbol, compiles once for each.

    Args:
        backward: whether there will be one; h alone may have more programs.
    """
    if refuses(q, v, gate=gate, chunk_size=64):
        return 64
    B, T = v.shape[0], v.shape[2]
    groups, H, d_qk, d_hv = map(int, (q.shape[1], v.shape[1], q.shape[-1], v.shape[-1]))
    tiles = 1
    while 64 * tiles < T:
        tiles *= 2
    from .launch import heads_together

    halves = _halves if isinstance(B, torch.SymInt) else _remembered_halves  # a symbol has no hash
    together = 1 if gate.normalize else heads_together(q, v)
    sizes = (B, H, groups, d_qk, d_hv, tiles)
    best = halves(*sizes, multiprocessors(q.device), together=together, norm=gate.normalize, backward=backward)
    return 64 * _segment_tiles(-(-T // 64), best)


def _segment_tiles(tiles: int, halves: int) -> int:
    """Of a sequence cut into so many half segments. An odd number leaves half a segment or less for the first, which
    may then be walked beside the state pass over the others (`launch.first_beside`).
    """
    found = -(-2 * tiles // halves)
    return found if found < 32 else found + found % 2  # long ones so that a state pass can cut them in two


def _halves(
    B: int, H: int, groups: int, d_qk: int, d_hv: int, tiles: int, chip: int, *,
    together: int, norm: bool, backward: bool,
) -> int:  # fmt: skip
    """Into how many half segments `default_chunk_size` cuts; `together`: heads of a program, chip: multiprocessors."""
    from .launch import Segments, StatePassShape, WalkShape, first_beside, parts_of_a_segment

    def tile_times(programs: int, alone: float, shared: float) -> float:
        """Of a tile, every round's, of programs that wait for their own work alone, for memory with the chip full."""
        return -(-programs // chip) * max(alone, shared * min(1.0, programs / chip))

    def times(w: int, z: int, rows: int, sums: bool) -> tuple[int, float, float]:
        """Of a walk with a state of z rows and w <= 256 columns: programs, and tile times as above."""
        if together > 1:
            return rows // together, 0.9, 1
        whole = WalkShape.of(w, z, sums=sums, norm=norm and not sums)
        shape = WalkShape.filling(w, z, rows, chip, sums=sums, norm=norm and not sums)
        alone, shared = (1, 1) if sums else (0.9, 1) if shape == whole else (0.45, 0.5)
        return rows * shape.pieces(z), alone, shared

    def walk(w: int, z: int, segments: int, sums: bool) -> float:
        """A tile of all these segments, in one launch for each 256 columns."""
        return -(-w // 256) * tile_times(*times(min(w, 256), z, B * H * segments, sums))

    of_a_program = StatePassShape.of(d_qk, d_hv, heads=H, z_sharing=H // groups).HEADS
    states = B * H // of_a_program * -(-d_qk // 128) * -(-d_hv // 256)  # programs of a state pass over one segment

    def cost(halves: int) -> float:
        """In tile times of h or dv and dq or dk, as they measured on an H200 (MEASURED); of as good ones the first.

        A backward tile by tile (`takes_tilewise`) has two state passes in place of walks, half a tile time each: as
        much where heads are together, less (not modelled) where not.
        """
        cut = Segments.of_tiles(tiles, _segment_tiles(tiles, halves))
        first = first_beside(d_qk, d_hv, B * H, cut, chip, norm=norm) if together == 1 else 0
        found = cut.segment_tiles * walk(d_qk, d_hv, cut.count - bool(first), sums=False)
        if backward:
            found += cut.segment_tiles * walk(d_hv, d_qk, cut.count, sums=True)
        if cut.count > 1:
            programs = states * (cut.count - 1 - bool(first))
            parts = parts_of_a_segment(cut, programs, chip - first)
            found += 0.3 * parts * cut.count  # joining them
            state_pass = cut.segment_tiles / parts * tile_times(programs * parts, 0.3, 0.5)
            if first:
                _, alone, shared = times(d_qk, d_hv, B * H, sums=False)
                memory = cut.segment_tiles * programs * 0.5 + cut.first_tiles * first * shared
                state_pass = max(state_pass, cut.first_tiles * alone, memory / chip)
            found += state_pass
        return found

    cuts = [2 * n for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64) if n <= tiles]
    if not backward:  # for which a segment that is not as long would be one more
        cuts += [2 * n + 1 for n in (2, 3, 4, 6, 8, 12, 16) if 32 * n <= tiles]
    return min(cuts, key=cost)


_remembered_halves = lru_cache(1024)(_halves)


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
