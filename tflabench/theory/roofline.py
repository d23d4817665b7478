"""Theoretical runtime, arithmetic intensity and roofline: eqs. (112)-(119) of the TFLA paper."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tflabench.theory.cost import Cost
from tflabench.theory.hardware import Ceilings

Number = Any  # float or numpy array


class TimeBounds(NamedTuple):
    """Theoretical runtime in seconds: computing and moving fully overlapped, and not at all."""

    lower: Number
    upper: Number


def time_bounds(cost: Cost, ceilings: Ceilings) -> TimeBounds:
    """tau_lower = max(FLOPs / alpha, bytes / beta) and tau_upper = their sum, in seconds (eqs. 112-116)."""
    compute, move = cost.flops / ceilings.flops_per_s, cost.bytes / ceilings.bytes_per_s
    return TimeBounds(lower=np.maximum(compute, move), upper=compute + move)


def attainable(ceilings: Ceilings, intensity: Number) -> Number:
    """FLOP/s at an arithmetic intensity: min(beta * I, alpha) (eq. 119)."""
    return np.minimum(ceilings.bytes_per_s * intensity, ceilings.flops_per_s)


def compute_bound(cost: Cost, ceilings: Ceilings) -> Any:
    """Return whether I_algo > I_acc (eqs. 117-118)."""
    return cost.intensity > ceilings.intensity


def percent_of_own_roofline(cost: Cost, ceilings: Ceilings, seconds: Number) -> Number:
    """Return the least time of these FLOPs and bytes as a percentage of a measured time.

    It is above 100 where they are not those of what ran: it moved less than counted, or its data stayed in a cache.
    """
    return 100 * time_bounds(cost, ceilings).lower / seconds
