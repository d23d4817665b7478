"""Transfer behaviour of the mLSTM: how large its output is, before and after the norm layer, for given gates.

The experiment of the paper (section 4.2, App. D.2, Figs. 3, 6, 7): one head, q, k, v ~ N(0, 1), and every step with the
same gate pre-activations i~ and f~. The gains are (eq. 26)

    G_before = mean_t |h_t|_max / |v_t|_max        G_after = mean_t |NORM(h_t)|_max / |v_t|_max

Constant gates leave little to compute. With x_t = sum_j S_tj sigma(f~)^(t-j) v_j and s_t the same sum with v_j = 1 (the
decayed scores alone), the parallel form (B.1, eq. 32) is

    exp, m = i~:              h_t = x_t / n(s_t, exp(-m))
    sig, m = log sigma(i~):   h_t = sigma(i~) x_t / n(sigma(i~) s_t, exp(-m))

so that x and s are computed once per forget gate, in float64, and i~, eps and the normaliser n only scale them.

The paper's models have gates under a soft cap (eq. 110), c tanh(x / c) with c = 15, which its experiment leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tflabench.problem import InputError
from tflabench.theory.cost import GATES, Gate

Array = np.ndarray
Norm = Literal["rms", "layer"]
LARGEST = 8192  # of steps, for memory and time grow with their square, and of head dimensions
PAPER_EPS = (1e-2, 1e-6, 1e-8)
DEFAULT_EPS = 1e-6
DEFAULT_BIAS = -10.0  # of input gates when training begins


@dataclass(frozen=True)
class Normalizer:
    """The denominator of h: n(s, bound), s the sum of a step's weighted scores (n_t . q_t), bound = exp(-m)."""

    name: str
    denominator: Callable[[Array, Array], Array]


NONE = Normalizer("1", lambda s, bound: np.ones_like(s))
STABILIZED = Normalizer("max(|s|, exp(-m))", lambda s, bound: np.maximum(abs(s), bound))
BOUNDED = Normalizer("max(|s|, 1)", lambda s, bound: np.maximum(abs(s), 1.0))
ABSOLUTE = Normalizer("|s|", lambda s, bound: abs(s))

# The paper names the defaults and Fig. 7b (a bound of 1); of the others it says only that they fail to train: here they
# are the normalisers that remain when the bound is taken from the other gate, or dropped.
FIGURES: dict[str, tuple[tuple[Gate, Normalizer], ...]] = {
    "3": (("exp", STABILIZED), ("sig", NONE)),
    "6": (("exp", STABILIZED), ("exp", BOUNDED), ("exp", ABSOLUTE)),
    "7": (("sig", NONE), ("sig", BOUNDED), ("sig", ABSOLUTE), ("sig", STABILIZED)),
}
OUR_READING = {"6": "rows 2 and 3", "7": "rows 3 and 4"}


@dataclass(frozen=True)
class Experiment:
    """The inputs: one head with q, k, v ~ N(0, 1); the defaults are the paper's.

    Attributes:
        input_gates, forget_gates: the pre-activations i~ and f~ of the grid.
        norm: the layer after the cell; without its learnt scale.
        soft_cap: c of the cap of both gates; None for none.
    """

    input_gates: tuple[float, ...] = tuple(np.arange(-12.0, 8.25, 0.25).tolist())
    forget_gates: tuple[float, ...] = tuple(np.arange(-5.0, 12.25, 0.25).tolist())
    seq_len: int = 512
    d_qk: int = 128
    d_hv: int = 128
    norm: Norm = "rms"
    seed: int = 0
    soft_cap: float | None = None

    def __post_init__(self) -> None:
        for name in ("seq_len", "d_qk", "d_hv"):
            if not 1 <= (size := getattr(self, name)) <= LARGEST:
                raise InputError(f"{name} is {size}: it must lie between 1 and {LARGEST}")
        if self.norm not in ("rms", "layer"):
            raise InputError(f"norm is {self.norm!r}: it must be rms or layer")
        if self.soft_cap is not None and not self.soft_cap > 0:
            raise InputError(f"soft_cap is {self.soft_cap:g}: it must be more than 0")

    def capped(self, pre_activations: Sequence[float]) -> Array:
        """Return the values of a gate under the soft cap."""
        x = np.array(pre_activations)
        return x if self.soft_cap is None else self.soft_cap * np.tanh(x / self.soft_cap)

    def inputs(self) -> tuple[Array, Array, Array]:
        """Return q, k (T, d_qk) and v (T, d_hv), float64."""
        random = np.random.default_rng(self.seed)
        return tuple(random.standard_normal((self.seq_len, d)) for d in (self.d_qk, self.d_qk, self.d_hv))  # type: ignore[return-value]


@dataclass(frozen=True)
class Gains:
    """Gains of one gate and normaliser over a grid, (input gates, forget gates); after the norm by its eps."""

    gate: Gate
    normalizer: Normalizer
    before: Array
    after: dict[float, Array]


@dataclass(frozen=True)
class _Decayed:
    """The inputs as one forget gate decays them, before any input gate: (T,) each.

    Attributes:
        sums: s_t.
        peak, peak_centred: |x_t|_max, and of x_t as the norm layer has it (less its mean, for a layer norm).
        power: mean square of the latter.
    """

    sums: Array
    peak: Array
    peak_centred: Array
    power: Array


def gains(
    experiment: Experiment, rows: Sequence[tuple[Gate, Normalizer]], eps: Sequence[float] = PAPER_EPS
) -> list[Gains]:
    """Return G_before and, for each `eps` of the norm layer (0 to 1), G_after over the grid, by gate and normaliser."""
    if wrong := [value for value in eps if not 0 <= value <= 1]:
        raise InputError(f"eps is {wrong[0]}: it must lie between 0 and 1")
    q, k, v = experiment.inputs()
    scores = q @ k.T / np.sqrt(experiment.d_qk)
    v_peak = abs(v).max(axis=1)
    i = experiment.capped(experiment.input_gates)[:, None]  # against (T,): (input gates, T)
    shape = (len(experiment.input_gates), len(experiment.forget_gates))
    maps = [Gains(gate, normalizer, np.empty(shape), {e: np.empty(shape) for e in eps}) for gate, normalizer in rows]
    for column, f in enumerate(experiment.capped(experiment.forget_gates)):
        decayed = _decay(scores, v, f, experiment.norm)
        for row in maps:
            scale = _amplitude(row.gate, row.normalizer, i, decayed.sums)
            row.before[:, column] = (scale * decayed.peak / v_peak).mean(axis=1)
            for e, after in row.after.items():
                with np.errstate(invalid="ignore"):  # eps = 0 and nothing written: 0 / 0
                    normed = scale * decayed.peak_centred / np.sqrt(scale**2 * decayed.power + e)
                after[:, column] = np.nan_to_num(normed / v_peak).mean(axis=1)
    return maps


def half_gain(input_gates: Sequence[float], gain: Array) -> float | None:
    """Return the i~ at which a gain (input gates,) rises past half its largest; None where it never lies below.

    Between the values of the grid it is interpolated linearly.
    """
    half = gain.max() / 2
    above = np.flatnonzero(gain >= half)
    first = int(above[0])
    if first == 0:
        return None
    low, high = gain[first - 1], gain[first]
    return float(np.interp(half, (low, high), (input_gates[first - 1], input_gates[first])))


def _decay(scores: Array, v: Array, f: float, norm: Norm) -> _Decayed:
    steps = np.arange(len(scores))
    lag = steps[:, None] - steps
    log_f = -np.logaddexp(0.0, -f)  # log sigma(f~)
    weighted = np.where(lag >= 0, scores * np.exp(log_f * np.maximum(lag, 0)), 0.0)
    x = weighted @ v
    centred = x - x.mean(axis=1, keepdims=True) if norm == "layer" else x
    return _Decayed(weighted.sum(axis=1), abs(x).max(axis=1), abs(centred).max(axis=1), (centred**2).mean(axis=1))


def _amplitude(gate: Gate, normalizer: Normalizer, i: Array, sums: Array) -> Array:
    """Return |h_t| / |x_t|, (input gates, T)."""
    if GATES[gate].normalized:  # of the exponential input gate
        return 1 / normalizer.denominator(np.broadcast_to(sums, (len(i), len(sums))), np.exp(-i))
    write = np.exp(-np.logaddexp(0.0, -i))  # sigma(i~)
    return write / normalizer.denominator(write * sums, 1 / write)
