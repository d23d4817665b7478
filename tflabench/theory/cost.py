"""FLOPs and bytes of mLSTM and of softmax attention: Tables 8-17 of the TFLA paper as pure functions.

A count is a polynomial in the length of the unit a formulation works on (`Polynomial`), per head:

    formulation   unit                                   FLOPs           bytes      published FLOPs
    chunkwise     one chunk of L = chunk_size steps      Tables 8, 14    Table 9    Table 17
    parallel      the whole sequence of T = seq_len      Tables 10, 15   Table 11   Table 17
    recurrent     n steps, state in memory each step     Tables 12, 16   Table 13   Table 17
    attention     the whole sequence, causal softmax     matrix products only; q, k, v, h moved once
    fused         no unit: see `tflabench.theory.fused`, which `model` asks

so the optimum over L follows from three coefficients (`tflabench.theory.chunk_size`). A multiply-add counts 2;
recomputation inside a kernel counts 0, as in the paper.

Two counts, told apart by name wherever a number comes out:
    "exact"      the sums of Tables 8, 10, 12, with a cost for each pointwise operation (`EXP`, ...);
    "published"  the closed forms of Table 17 and eqs. (111)-(121) as printed, every operation costing 1.
They differ in lower-order terms of the chunkwise form only (docs/where-the-paper-errs.md). Where the paper prints
nothing, published counts are the exact ones.

What depends on the gates is a `GateCounts` in `GATES`, to which a family adds its own. docs/theory.md has what is
counted of Gated Linear Attention and the delta rules, and of a backward pass, of which the paper counts none:
`pass_="fwbw"` adds the matrix products of Table 1's kernels, of which dQ and dK both compute dS, and dV S again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

from tflabench.problem import InputError, Pass, one_of

Gate = str  # a name of GATES
Formulation = Literal["chunkwise", "fused", "parallel", "recurrent", "attention"]
Counts = Literal["exact", "published"]
Number = Any  # int, float or numpy array

DEFAULT_CHUNK_SIZE = 128  # where an implementation does not say: what the paper found fastest (Fig. 4, xl_chunk)
DELTA_TILE = 64  # steps whose errors the kernels of the delta rules solve for together
ATTENTION_BACKWARD = 2.5  # five matrix products in the backward (one recomputed), two in the forward


# FLOPs that one pointwise operation costs: F_exp, F_log, F_sig, F_max, F_abs and F_mask of the paper (Table 7).
EXP = LOG = SIG = MAX = ABS = MASK = 1


@dataclass(frozen=True)
class Polynomial:
    """constant + linear * n + square * n**2, a count over n steps."""

    constant: Number = 0
    linear: Number = 0
    square: Number = 0

    def __call__(self, n: Number) -> Number:
        """Return the value at n."""
        return self.constant + self.linear * n + self.square * n * n

    def __add__(self, count: Polynomial) -> Polynomial:
        return Polynomial(self.constant + count.constant, self.linear + count.linear, self.square + count.square)

    def __mul__(self, factor: float) -> Polynomial:
        return Polynomial(self.constant * factor, self.linear * factor, self.square * factor)


Terms = dict[str, Polynomial]


@dataclass(frozen=True)
class Cost:
    """The FLOPs and bytes of one call, over batch and heads."""

    flops: Number
    bytes: Number

    @property
    def intensity(self) -> Number:
        """Return I_algo = FLOPs / bytes (eq. 117)."""
        return self.flops / self.bytes


def linear_recurrence_flop_terms(formulation: Formulation, d_qk: Number, d_hv: Number, causal_factor: float) -> Terms:
    """Return `flop_terms` of any linear recurrence, its matrix products alone."""
    dd = d_qk * d_hv
    if formulation == "recurrent":
        return {"memory cell": Polynomial(linear=4 * dd), "outputs": Polynomial(linear=2 * dd)}
    within = {"intra outputs": Polynomial(square=2 * causal_factor * (d_qk + d_hv))}
    if formulation == "parallel":
        return within
    through = {"recurrent numerator": Polynomial(linear=2 * dd), "inter outputs": Polynomial(linear=2 * dd)}
    return through | within


@dataclass(frozen=True)
class GateCounts:
    """Count FLOPs and bytes of the gates of an operation.

    Attributes:
        title: of the operation, as figures write it.
        gate_elements: d_qk -> gate values of a head and step.
        flop_terms: (formulation, d_qk, d_hv, causal_factor) -> its rows of Tables 8, 10 and 12.
        normalized: the state has a normaliser and a stabiliser.
        published: (formulation, d_qk, d_hv, causal_factor) -> its row of Table 17; None where the paper prints none.
        modelled: the calibrated model and the model of the fused kernels know it.
        delta: what is written is v less what the state has of it, the delta rule.
        note: what captions call its counts.
    """

    title: str
    gate_elements: Callable[[Number], Number]
    flop_terms: Callable[[Formulation, Number, Number, float], Terms] = linear_recurrence_flop_terms
    normalized: bool = False
    published: Callable[[Formulation, Number, Number, float], Polynomial] | None = None
    modelled: bool = False
    delta: bool = False
    note: str = "counts of its matrix products"


def over_sequence(per_unit: Polynomial, seq_len: Number, unit: Number) -> Number:
    """Return the sum of a count over a sequence cut into units, the last one shorter where they do not divide it."""
    rest = seq_len % unit
    return (seq_len // unit) * per_unit(unit) + (rest > 0) * per_unit(rest)


def flop_polynomial(
    formulation: Formulation,
    gate: Gate,
    d_qk: Number,
    d_hv: Number,
    *,
    causal_factor: float = 0.5,
    pass_: Pass = "fw",
    counts: Counts = "published",
) -> Polynomial:
    """Return the FLOPs per head and unit, every pointwise operation costing 1."""
    one_of("counts", counts, get_args(Counts))
    _check(formulation, gate, causal_factor)
    published = GATES[gate].published
    if counts == "published" and formulation != "attention" and published:
        total = published(formulation, d_qk, d_hv, causal_factor)
    else:
        total = sum_of(flop_terms(formulation, gate, d_qk, d_hv, causal_factor))
    if pass_ == "fwbw":
        total += sum_of(backward_flop_terms(formulation, gate, d_qk, d_hv, causal_factor))
    return total


def byte_polynomial(
    formulation: Formulation, gate: Gate, d_qk: Number, d_hv: Number, *, pass_: Pass = "fw", **widths: Number
) -> Polynomial:
    """Return the bytes read and written per head and unit; `widths` are the other arguments of `byte_terms`."""
    total = sum_of(byte_terms(formulation, gate, d_qk, d_hv, **widths))
    if pass_ == "fwbw":
        total += sum_of(backward_byte_terms(formulation, gate, d_qk, d_hv, **widths))
    return total


def flop_terms(formulation: Formulation, gate: Gate, d_qk: Number, d_hv: Number, causal_factor: float = 0.5) -> Terms:
    """Return the rows of Table 8 (chunkwise), 10 (parallel) or 12 (recurrent), by name, per head and unit."""
    _check(formulation, gate, causal_factor)
    if formulation == "attention":
        pairs = 2 * causal_factor
        return {"logits": Polynomial(square=pairs * d_qk), "outputs": Polynomial(square=pairs * d_hv)}
    return GATES[gate].flop_terms(formulation, d_qk, d_hv, causal_factor)


def _two_gate_flop_terms(
    exp: bool, formulation: Formulation, d_qk: Number, d_hv: Number, causal_factor: float
) -> Terms:
    """Return `flop_terms` of the mLSTM: of its exponential input gate, or of its sigmoid one."""
    F, log_sig = causal_factor, LOG + SIG
    if formulation == "parallel":
        terms = {
            "cumulative forget gates": Polynomial(linear=0.5 + (1 if exp else 2) * log_sig, square=0.5),
            # The table prints a maximum for sig as well.
            "gate matrix": Polynomial(square=3 + EXP + MAX + MASK),
            "logits": Polynomial(square=F * (2 * d_qk + 2)),
            "outputs": Polynomial(square=F * 2 * d_hv),
        }
        if exp:
            terms["normalization"] = Polynomial(linear=F * (EXP + MAX), square=F * (3 + ABS))
        return terms
    if formulation == "recurrent":
        terms = {
            "gates": Polynomial(linear=4 + 2 * EXP + log_sig + MAX if exp else 2 * SIG),
            "memory cell": Polynomial(linear=4 * d_qk * d_hv),
            "outputs": Polynomial(linear=2 * d_qk * d_hv + d_qk),
        }
        if exp:
            terms["denominator and scale"] = Polynomial(linear=6 * d_qk + d_hv + 1 + ABS + MAX)
        return terms

    numerator = Polynomial(constant=2 * d_qk * d_hv, linear=2 * d_qk * d_hv + d_qk)
    intra = Polynomial(square=F * (2 * (d_qk + d_hv) + 3))
    if exp:
        return {
            "recurrent gates": Polynomial(3 + MAX + EXP, 3.5 + EXP + log_sig, 0.5),
            "recurrent numerator": numerator,
            "recurrent denominator": Polynomial(constant=2 * d_qk, linear=2 * d_qk),
            "cumulative forget gates": Polynomial(linear=0.5 + log_sig, square=0.5),
            "gate matrix": Polynomial(linear=F * (1 + MAX), square=F * (3 + EXP + MAX)),
            "intra outputs": intra,
            "inter outputs": Polynomial(linear=2 * d_qk * d_hv + 3 * d_qk),
            "combination": Polynomial(linear=2 * d_hv + 1 + MAX + ABS + EXP),
        }
    return {
        "recurrent gates": Polynomial(EXP, 2.5 + EXP + 2 * log_sig, 0.5),
        "recurrent numerator": numerator,
        "cumulative forget gates": Polynomial(linear=0.5 + 2 * log_sig, square=0.5),
        "gate matrix": Polynomial(square=F * (2 + EXP)),
        "intra outputs": intra,
        "inter outputs": Polynomial(linear=2 * d_qk * d_hv + d_qk),
        "combination": Polynomial(linear=d_hv),
    }


def _channel_gate_flop_terms(formulation: Formulation, d_qk: Number, d_hv: Number, causal_factor: float) -> Terms:
    """Return `flop_terms` of Gated Linear Attention: the rows of the same tables with a decay a channel."""
    F, dd = causal_factor, d_qk * d_hv
    if formulation == "recurrent":
        return {
            "gates": Polynomial(linear=EXP * d_qk),
            "memory cell": Polynomial(linear=3 * dd),  # without an input gate
            "outputs": Polynomial(linear=2 * dd + d_qk),
        }
    within = {
        "cumulative decays": Polynomial(linear=d_qk),
        "weights of q and k": Polynomial(linear=2 * (2 + EXP) * d_qk),  # less the reference, exp, product
        "intra outputs": Polynomial(square=F * (2 * (d_qk + d_hv) + MASK)),
    }
    if formulation == "parallel":
        return within
    return {
        "recurrent gates": Polynomial(EXP * d_qk, (1 + EXP) * d_qk),
        "recurrent numerator": Polynomial(constant=2 * dd, linear=2 * dd + d_qk),
        **within,
        "inter outputs": Polynomial(linear=2 * dd + d_qk),
        "combination": Polynomial(linear=d_hv),
    }


def _delta_flop_terms(formulation: Formulation, d_qk: Number, d_hv: Number, causal_factor: float) -> Terms:
    """Return `flop_terms` of the delta rules: those of linear attention, and what makes its values."""
    terms = linear_recurrence_flop_terms(formulation, d_qk, d_hv, causal_factor)
    read, pairs, solve = Polynomial(linear=2 * d_qk * d_hv), 2 * causal_factor, Polynomial(linear=DELTA_TILE**2 / 3)
    if formulation == "recurrent":
        return terms | {"errors: K C": read}
    if formulation == "parallel":
        return terms | {"errors: K K^T, (I + A)^-1 V": Polynomial(square=pairs * (d_qk + d_hv)) + solve}
    of_tile = pairs * DELTA_TILE
    return terms | {
        "scores of keys: K K^T": Polynomial(linear=of_tile * d_qk),
        "inverse: (I + A)^-1": solve,
        "errors: K C": read,
        "errors: (I + A)^-1 (V - K C)": Polynomial(linear=of_tile * d_hv),
    }


def _published_two_gates(
    exp: bool, formulation: Formulation, d_qk: Number, d_hv: Number, causal_factor: float
) -> Polynomial:
    """Return Table 17 as printed, per head and unit (the table's T/L and T factors are the number of units)."""
    F, dd = causal_factor, d_qk * d_hv
    rows = {
        ("chunkwise", True): Polynomial(
            constant=2 * dd + 2 * d_qk + 5,
            linear=2 * F + 4 * dd + 6 * d_qk + 4 * d_hv + 13,
            square=F * (2 * (d_qk + d_hv) + 8) + 1,
        ),
        ("chunkwise", False): Polynomial(
            constant=2 * dd + 5, linear=4 * dd + 2 * d_qk + d_hv + 11, square=F * (2 * (d_qk + d_hv) + 6) + 1
        ),
        ("parallel", True): Polynomial(linear=2 * F + 2.5, square=F * (2 * (d_qk + d_hv) + 6) + 6.5),
        ("parallel", False): Polynomial(linear=4.5, square=F * (2 * (d_qk + d_hv) + 2) + 6.5),
        ("recurrent", True): Polynomial(linear=6 * dd + 7 * d_qk + d_hv + 12),
        ("recurrent", False): Polynomial(linear=6 * dd + d_qk + 2),
    }
    return rows[formulation, exp]


def backward_flop_terms(
    formulation: Formulation, gate: Gate, d_qk: Number, d_hv: Number, causal_factor: float = 0.5
) -> Terms:
    """Return the FLOPs of the backward's products (section B.3; attention: 2.5 times its forward), per head and unit.

    Chunkwise: by kernel, as Table 1 divides the work. A name that ends in "again" is a product that an earlier kernel
    computed as well; the sum of the others is what the gradients take at least.
    """
    _check(formulation, gate, causal_factor)
    F, dd = causal_factor, d_qk * d_hv
    if formulation == "attention":
        forward = flop_terms(formulation, gate, d_qk, d_hv, causal_factor)
        return {name: term * ATTENTION_BACKWARD for name, term in forward.items()}
    if GATES[gate].delta:
        return _delta_backward_flop_terms(formulation, d_qk, d_hv, F)
    if formulation == "recurrent":
        return {
            "states, again": Polynomial(linear=4 * dd),
            "state gradients": Polynomial(linear=4 * dd),
            "dQ, dK, dV": Polynomial(linear=6 * dd),
        }
    over_qk, over_hv = Polynomial(square=2 * F * d_qk), Polynomial(square=2 * F * d_hv)
    if formulation == "parallel":
        return {
            "S = Q K^T, again": over_qk,
            "dS = dH V^T": over_hv,
            "dQ = dS K": over_qk,
            "dK = dS^T Q": over_qk,
            "dV = S^T dH": over_hv,
        }
    state, through_state = Polynomial(constant=2 * dd, linear=2 * dd), Polynomial(linear=2 * dd)
    return {
        "C kernel: K^T V, again": state,
        "dC kernel: Q^T dH": state,
        "dQ kernel: dS = dH V^T": over_hv,
        "dQ kernel: dS K": over_qk,
        "dQ kernel: dH C^T": through_state,
        "dK kernel: dS^T = V dH^T, again": over_hv,
        "dK kernel: dS^T Q": over_qk,
        "dK kernel: V dC^T": through_state,
        "dV kernel: S^T = K Q^T, again": over_qk,
        "dV kernel: S^T dH": over_hv,
        "dV kernel: K dC": through_state,
    }


def _delta_backward_flop_terms(formulation: Formulation, d_qk: Number, d_hv: Number, causal_factor: float) -> Terms:
    """Return `backward_flop_terms` of the delta rules: k reads the state as q does, with the gradient -dV."""
    dd, F = d_qk * d_hv, causal_factor
    through_state = Polynomial(linear=2 * dd)
    if formulation == "recurrent":
        return {
            "states, again": Polynomial(linear=6 * dd),
            "state gradients": Polynomial(linear=6 * dd),
            "dQ, dK, dV": Polynomial(linear=8 * dd),
        }
    solve = Polynomial(linear=DELTA_TILE**2 / 3)
    over_qk, over_hv = Polynomial(square=2 * F * d_qk), Polynomial(square=2 * F * d_hv)
    of_pairs = {
        "dQ kernel: dS = dH R^T": over_hv,
        "dQ kernel: dS K": over_qk,
        "dK kernel, reads: dA = dV R^T": over_hv,
        "dK kernel, reads: dA K": over_qk,
        "dK kernel, writes: dS^T = R dH^T, again": over_hv,
        "dK kernel, writes: dS^T Q": over_qk,
        "dK kernel, writes: dA^T = R dV^T, again": over_hv,
        "dK kernel, writes: dA^T K": over_qk,
    }
    if formulation == "parallel":
        scores = {"Q K^T, again": over_qk, "K K^T, again": over_qk, "(I + A)^-1, again": solve}
        return scores | {"dR = S^T dH": over_hv, "dV = (I + A)^-T dR": over_hv} | of_pairs
    tile_qk, tile_hv = (Polynomial(linear=2 * F * DELTA_TILE * d) for d in (d_qk, d_hv))
    return {
        "tile kernel: K K^T, again": tile_qk,
        "tile kernel: Q K^T, again": tile_qk,
        "tile kernel: (I + A)^-1, again": solve,
        "dC kernel: S^T dH": tile_hv,
        "dC kernel: K dC": through_state,
        "dC kernel: (I + A)^-T dR": tile_hv,
        "dC kernel: Q^T dH": Polynomial(constant=2 * dd, linear=2 * dd),
        "dC kernel: K^T dV": through_state,
        **of_pairs,
        "dQ kernel: dH C^T": through_state,
        "dK kernel, reads: dV C^T": through_state,
        "dK kernel, writes: R dC^T": through_state,
    }


def byte_terms(
    formulation: Formulation,
    gate: Gate,
    d_qk: Number,
    d_hv: Number,
    element_bytes: Number = 2,
    gate_bytes: Number = 2,
    state_bytes: Number = 4,
    group: int = 1,
) -> Terms:
    """Return the rows of Table 9 (chunkwise), 11 (parallel) or 13 (recurrent), by name, per head and unit.

    Bytes of elements, gates and states are b_qkv, b_if and b_C. Of `group` heads that share q and k, each has its part
    of theirs. Table 13 prints the totals of exp and sig in each other's column; these are the sums of its rows.
    """
    _check(formulation, gate)
    of_qk = d_qk / group if group > 1 else d_qk
    qkv = Polynomial(linear=(2 * of_qk + d_hv) * element_bytes)
    h = Polynomial(linear=d_hv * element_bytes)
    if formulation == "attention":
        return {"load": qkv, "store": h}
    gates = Polynomial(linear=GATES[gate].gate_elements(d_qk) * gate_bytes)
    # n_t and m_t of every step are stored for the backward.
    normalizer = Polynomial(linear=2 * state_bytes * GATES[gate].normalized)
    if formulation == "parallel":
        return {"load": qkv + gates, "store": h + normalizer}
    state = state_elements(gate, d_qk, d_hv) * state_bytes
    if formulation == "recurrent":
        state = Polynomial(linear=state)
        return {"load": qkv + gates + state, "store": h + state}
    state = Polynomial(constant=state)
    kv = Polynomial(linear=(of_qk + d_hv) * element_bytes)
    terms = {
        "recurrent kernel, load": kv + gates,
        "recurrent kernel, store": state,
        "parallel kernel, load": qkv + gates + state,
        "parallel kernel, store": h + normalizer,
    }
    if not GATES[gate].delta:
        return terms
    k, inverse = Polynomial(linear=of_qk * element_bytes), Polynomial(linear=DELTA_TILE * element_bytes)
    return terms | {
        "tile kernel, load": k + gates,
        "tile kernel, store": inverse,
        "recurrent kernel, load": kv + gates + inverse,
        "recurrent kernel, store": state + h,  # errors are as wide as h
    }


def backward_byte_terms(
    formulation: Formulation,
    gate: Gate,
    d_qk: Number,
    d_hv: Number,
    element_bytes: Number = 2,
    gate_bytes: Number = 2,
    state_bytes: Number = 4,
    group: int = 1,
) -> Terms:
    """Return the bytes of the backward pass, counted as Table 9 counts the forward: every kernel reads its inputs once.

    Chunkwise: one kernel computes the states again, one walks their gradients, and dQ, dK, dV have one each, which also
    sum q.dq and k.dk for the gates' gradients; so dQ reads q, and dK reads k. The delta rules keep the states.
    """
    _check(formulation, gate)
    of_qk = d_qk / group if group > 1 else d_qk
    qk, hv = Polynomial(linear=of_qk * element_bytes), Polynomial(linear=d_hv * element_bytes)
    gates = Polynomial(linear=GATES[gate].gate_elements(d_qk) * gate_bytes)
    inputs, gradients = qk * 2 + hv * 2, qk * 2 + hv  # q, k, v, dh; dq, dk, dv
    if formulation == "attention":
        return {"load": inputs + hv, "store": gradients}
    normalizer = Polynomial(linear=2 * state_bytes * GATES[gate].normalized)
    if formulation == "parallel":
        return {"load": inputs + gates + normalizer, "store": gradients + gates}
    state = state_elements(gate, d_qk, d_hv) * state_bytes
    if formulation == "recurrent":
        state = Polynomial(linear=4 * state)  # C and dC, read and written every step
        return {"load and store": inputs + gates * 2 + normalizer + gradients + state}
    state = Polynomial(constant=state)
    if GATES[gate].delta:
        pairs = Polynomial(linear=2 * DELTA_TILE * element_bytes)  # the inverse, and Q K^T of tiles
        return {
            "tile kernel, load": qk * 2 + gates,
            "tile kernel, store": pairs,
            "dC kernel, load": inputs + gates + pairs + state,
            "dC kernel, store": state + hv + gates,
            "dQ kernel, load": inputs + gates + state,
            "dQ kernel, store": qk + gates,
            "dK kernel, reads, load": qk + hv * 2 + gates + state,
            "dK kernel, reads, store": qk + gates,
            "dK kernel, writes, load": inputs + qk + hv * 2 + gates * 2 + state,
            "dK kernel, writes, store": qk * 2 + gates * 2,
            "dK, parts added up": qk * 4,
        }
    return {
        "C kernel, load": qk + hv + gates,
        "C kernel, store": state,
        "dC kernel, load": qk + hv + gates + normalizer,
        "dC kernel, store": state,
        "dQ kernel, load": inputs + gates + normalizer + state,
        "dQ kernel, store": qk + gates,
        "dK kernel, load": inputs + gates + normalizer + state,
        "dK kernel, store": qk + gates,
        "dV kernel, load": qk * 2 + hv + gates + normalizer + state,
        "dV kernel, store": hv,
    }


def state_elements(gate: Gate, d_qk: Number, d_hv: Number) -> Number:
    """Return the elements of one recurrent state: C, and n and m where there is a normaliser."""
    return d_qk * d_hv + (d_qk + 1) * GATES[gate].normalized


def sum_of(terms: Terms) -> Polynomial:
    """Return the sum of terms."""
    return sum(terms.values(), Polynomial())


def _check(formulation: Formulation, gate: Gate, causal_factor: float = 0.5) -> None:
    one_of("formulation", formulation, [name for name in get_args(Formulation) if name != "fused"])
    one_of("gate", gate, GATES)
    if not 0.5 <= causal_factor <= 1:
        raise InputError(f"causal_factor is {causal_factor}: it must lie in [0.5, 1]")


# By the names of `--gate`: the mLSTM's input gates, Gated Linear Attention, and what families add.
GATES: dict[Gate, GateCounts] = {
    **{
        name: GateCounts(
            f"mLSTM{name}",
            lambda d_qk: 2,
            partial(_two_gate_flop_terms, exp),
            normalized=exp,
            published=partial(_published_two_gates, exp),
            modelled=True,
            note="published counts (Table 17)",
        )
        for name, exp in {"exp": True, "sig": False}.items()
    },
    "delta_net": GateCounts("DeltaNet", lambda d_qk: 1, _delta_flop_terms, delta=True),
    "gated_delta_net": GateCounts("Gated DeltaNet", lambda d_qk: 2, _delta_flop_terms, delta=True),
    "kda": GateCounts("KDA", lambda d_qk: d_qk + 1, _delta_flop_terms, delta=True),
    "gla": GateCounts(
        "GLA", lambda d_qk: d_qk, _channel_gate_flop_terms, note="counts as of Table 8, a decay a channel"
    ),
}
