"""Digests of results, taken in every turn, tell whether a kernel gives the same results every time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

GROUPS = 64
# Of atomic additions in another order, results differ by rounding: a sum over a group then differs by about the error
# allowed. Beyond this many times that, something else has changed.
TIMES_ALLOWED = 8.0

OF_FIRST_CALL = " of new inputs"  # behind the name of a result

Digest = dict[str, list[float]]  # by result: sums over GROUPS parts of it, in units of a part's root mean square


def digest(results: Mapping[str, Tensor]) -> Digest:
    """Return sums over consecutive parts of every result, each over root mean square times the root of its size.

    Independent errors of relative size e change a sum by about e, however many elements it has.
    """
    return {name: _sums(result) for name, result in results.items()}


def _sums(result: Tensor) -> list[float]:
    import torch

    flat = result.detach().reshape(-1)
    parts = flat.chunk(min(GROUPS, flat.numel()))
    wide = torch.promote_types(flat.dtype, torch.float32)
    scale = torch.linalg.vector_norm(flat, dtype=wide) / flat.numel() ** 0.5
    sums = [part.sum(dtype=wide) for part in parts]
    sizes = torch.tensor([part.numel() for part in parts], device=flat.device)
    return (torch.stack(sums) / (scale.clamp_min(1e-30) * sizes.sqrt())).tolist()


def no_longer_finite(first: Digest, last: Digest) -> str | None:
    """Return which result has NaN or infinities that it had not in the first call, or None."""
    for name, sums in last.items():
        if all(map(isfinite, first.get(name + OF_FIRST_CALL, ()))) and not all(map(isfinite, sums)):
            return f"not repeatable: {name} has NaN or infinities in a later call"
    return None


def changed(before: Digest, after: Digest, allowed: Mapping[str, float]) -> str | None:
    """Return how the results of two turns differ by more than rounding, or None.

    Args:
        allowed: by result, the relative error that the correctness gate allows.
    """
    for name, sums in before.items():
        now = after.get(name, [])
        limit = TIMES_ALLOWED * max(allowed.get(name.removesuffix(OF_FIRST_CALL), 0.0), 1e-6)
        if len(now) != len(sums) or _largest_difference(sums, now) > limit:
            return f"not repeatable: {name} changes from one call to the next"
    return None


def _largest_difference(before: Sequence[float], after: Sequence[float]) -> float:
    """NaN and infinities count as they are: equal to themselves, and infinitely far from anything else."""
    pairs = [(a, b) for a, b in zip(before, after, strict=True) if not (a == b or (a != a and b != b))]
    return max((abs(a - b) if isfinite(a) and isfinite(b) else float("inf") for a, b in pairs), default=0.0)
