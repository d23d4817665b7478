"""The fused Hopper kernels without a GPU: their algebra in float64, tile by tile, and what they compile to."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tflabench.kernels.common.contract import Arguments, KernelOptions
from tflabench.kernels.scalar import reference
from tflabench.kernels.state import State
from tflabench.kernels.types import MLSTM_EXP, MLSTM_SIG, Gate

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is imported

pytest.importorskip("triton.experimental.gluon")

from compiled import compiled_under
from hopper_emulation import emulate_walk_forward, emulated  # noqa: F401  a fixture

from tflabench.kernels.common.sizes import Device, Sizes, in_steps
from tflabench.kernels.scalar.hopper import backward as hopper_backward
from tflabench.kernels.scalar.hopper import chunkwise as hopper_chunkwise
from tflabench.kernels.scalar.hopper import forward as hopper_forward
from tflabench.kernels.scalar.hopper.config import CarryConfig
from tflabench.kernels.scalar.hopper.launch import PACK
from tflabench.kernels.scalar.hopper.segment_states import CarriedStates, carry
from tflabench.kernels.scalar.plan import hopper as plans

SHARED_BYTES = 232_448
SPILLED_BYTES = 256  # stores and loads, outside the loops over tiles but for a few in the normalised h of 256/512
SPILLED_BYTES_NEWER = {"128/256": 160, "256/512": 320, "64/64": 128}  # on Triton 3.9
# Its roles fill their registers, and a few in a loop cost much: without row sums there is 0, with them 32 to 48.
SPILLED_BYTES_OF_PAIR, SPILLED_BYTES_OF_PAIR_WITH_SUMS = 16, 48
GATES = {
    "exp": MLSTM_EXP,
    "sig": MLSTM_SIG,
    "sig_normalized": Gate("sigmoid", "sigmoid", normalize=True),
    "exp_unnormalized": Gate("sigmoid", "exp"),
    "retention": Gate("fixed", "none"),
    "mamba2": Gate("log_decay", "step"),
}


def inputs(gate: Gate, T: int, with_state: bool, hard: bool = False, sharing: int = 1) -> dict[str, Any]:
    torch.manual_seed(T)
    B, H, d_qk, d_hv = 1, max(2, 2 * sharing), 64 if sharing == PACK else 16, 64
    f = {"sigmoid": torch.randn(B, H, T) + 2, "log_decay": -torch.rand(B, H, T), "fixed": -torch.rand(H) / 9}[
        gate.forget
    ]
    i = {"step": torch.rand(B, H, T) + 0.1, "none": None}.get(gate.input, torch.randn(B, H, T))
    if hard and gate.forget == "sigmoid":
        f = torch.where(torch.rand(B, H, T) < 0.3, 30 * torch.sign(f), f)
        f[:, :, 40::97] = -torch.inf
        i = None if i is None or gate.input == "step" else torch.where(torch.rand(B, H, T) < 0.3, 30 * torch.sign(i), i)
    state = State(
        torch.randn(B, H, d_qk, d_hv),
        torch.randn(B, H, d_qk) if gate.normalize else None,
        torch.randn(B, H) if gate.stabilized else None,
    )
    return {
        "q": torch.randn(B, H // sharing, T, d_qk),
        "k": torch.randn(B, H // sharing, T, d_qk),
        "v": torch.randn(B, H, T, d_hv),
        "f": f,
        "i": i,
        "initial": state if with_state else None,
    }


def double(x: Any) -> Any:
    return None if x is None else State(*map(double, x)) if isinstance(x, State) else x.double().requires_grad_()


@pytest.mark.parametrize(
    ("name_of_gate", "gate_gradients"),
    [*((gate, True) for gate in GATES), *((gate, False) for gate in ("exp", "mamba2"))],
    ids=[*GATES, "exp, no gate gradients", "mamba2, no gate gradients"],
)
@pytest.mark.parametrize(
    ("T", "chunk_size", "own", "with_state", "hard", "sharing"),
    [
        (200, 512, None, False, True, 1),
        (330, 128, None, True, False, 1),
        (330, 128, None, True, False, 2),
        (330, 128, 192, True, False, PACK),  # where heads are together forward keeps to backward's cut
        (2100, 4096, None, True, False, 1),
        (560, 256, None, False, False, 1),  # the first of three segments beside the state pass, where there is room
        (560, 256, None, True, False, 1),
        (560, 128, 256, True, False, 2),
        (330, 128, 384, False, False, 1),
    ],
)
@pytest.mark.usefixtures("emulated")
def test_walks_compute_the_recurrence_and_its_gradients(
    name_of_gate: str, gate_gradients: bool, T: int, chunk_size: int, own: int | None, with_state: bool, hard: bool,
    sharing: int, monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    """Roles, exponents with denominators, segments, states, gate gradients; no rounding to bfloat16."""
    gate = GATES[name_of_gate]
    x = inputs(gate, T, with_state, hard, sharing)
    options = KernelOptions(
        gate, -0.3 if with_state else 0.25, chunk_size, cut_freely=own is not None, gate_gradients=gate_gradients
    )
    skipped = sharing > 1 and not gate.normalize
    arguments = Arguments(**x, skip=torch.randn(x["v"].shape[1]) if skipped else None)
    saved: tuple[Tensor, ...]
    chosen = SimpleNamespace(chunk_size=lambda _T: own)
    monkeypatch.setattr(plans.hopper_segments, "chosen_for_forward", lambda _: chosen)
    monkeypatch.setattr(plans, "forward", plans.forward.__wrapped__)  # not remembered
    h, last, saved = hopper_forward.forward(arguments, options)
    assert last is not None
    shapes = hopper_forward.empty_saved(x["q"], x["v"], options)
    assert [y.shape for y in saved] == [y.shape for y in shapes]

    exact = {name: double(y) for name, y in x.items()}
    h_exact, last_exact = reference.chunkwise(**exact, gate=gate, scale=options.scale, chunk_size=64)
    skip = double(arguments.skip)
    if skip is not None:
        h_exact = h_exact + skip[:, None, None] * exact["v"]
    dh = torch.randn_like(h)
    d_last = (
        State(torch.randn_like(last.C), None if last.n is None else torch.randn_like(last.n)) if with_state else None
    )
    loss = (h_exact * dh).sum()
    for state, gradient in zip(last_exact[:2], d_last or (), strict=False):
        if state is not None and gradient is not None:
            loss = loss + (state * gradient).sum()
    C_0, n_0 = (exact["initial"] or (None, None))[:2]
    given = (exact["q"], exact["k"], exact["v"], exact["f"], exact["i"], C_0, n_0, skip)
    gradients = torch.autograd.grad(loss, [y for y in given if y is not None])

    got = hopper_backward.backward(dh, d_last, arguments, saved, options)
    pairs = [("h", h, h_exact), ("C", last.C, last_exact.C), ("n", last.n, last_exact.n), ("m", last.m, last_exact.m)]
    names = ("dq", "dk", "dv", "df", "di", "dC", "dn", "dskip")
    left = iter(gradients)
    true = [None if y is None else next(left) for y in given]
    for name, y, y_exact in zip(names, got, true, strict=False):
        assert (y is None) == (y_exact is None or (name in ("df", "di") and not gate_gradients)), name
        pairs.append((name, y, y_exact))
    for name, y, y_exact in pairs:
        if y is None:
            continue
        error = (y.double() - y_exact).norm() / y_exact.norm().clamp(min=1e-30)
        # An exponential gate of +-30 leaves denominators near 0, which blow the rounding of float32 exponents up.
        assert error < (5e-2 if hard and gate.normalize else 2e-5), (name, error.item())


@pytest.mark.usefixtures("emulated")
def test_what_h_reads_before_it_waits_is_copied_before_the_kernel_it_waits_for(monkeypatch: pytest.MonkeyPatch):
    """q, k and v that TMA cannot take: h may fetch the copies as soon as the kernel before it has begun."""
    launched: list[str] = []

    def record(name: str, call: Any) -> Any:
        return lambda *args, **options: (launched.append(name), call(*args, **options))[1]

    monkeypatch.setattr(hopper_forward, "aligned", record("copy", torch.clone))
    monkeypatch.setattr(hopper_forward, "exponents", record("exponents", hopper_forward.exponents))
    monkeypatch.setattr(hopper_forward, "launch_walk", record("h", emulate_walk_forward))
    x = inputs(GATES["sig"], 200, with_state=False)
    hopper_forward.forward(Arguments(**x), KernelOptions(GATES["sig"], -0.3, 512))
    assert launched[:4] == ["copy", "copy", "copy", "exponents"]
    assert launched[-1] == "h"


# --- What they compile to ---------------------------------------------------------------------------------------------


TOGETHER = ":" + ";".join(f"{name} of heads together" for name in ("h", "h of segments", "C"))
TILEWISE = (
    ";C of every tile;dC of every tile;C of every tile, of heads of their own;dC of every tile, of heads of their own"
    ";gradients;gradients of a head;gradients with a skip connection;gradients without row sums"
)
MAIN = ":h;h normalised;dq;dk;dv;C, n;dC"
OTHERS = (
    ";dq without row sums;h normalised for segments;h of half the rows;h normalised of half the rows;h for segments"
)


# For the oldest Triton, which nobody tunes for any more: every kernel, in the branches that most calls take.
FEW = [
    "128/256:h;h normalised;h normalised of half the rows;dq;dq without row sums;dk;dv"
    ";dk and dv;dk and dv without row sums;C, n;dC",
    "256/512:h;h normalised;dq;dk;dv;C, n;dC",
    "64/64:h of heads together;C of heads together;C of every tile;dC of every tile;gradients;gradients of a head",
]


@pytest.fixture(
    scope="module",
    params=[
        ("oldest", FEW),
        (
            "installed",
            [
                "128/256" + MAIN + OTHERS + ";dk and dv;dk and dv without row sums",
                "256/512" + MAIN + ";h normalised for segments",
                "64/64" + TOGETHER + TILEWISE,
            ],
        ),
    ],
    ids=lambda param: param[0],
)
def compiled(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The Triton that ran and what each kernel uses, compiled in a process of its own (this one interprets)."""
    triton, shapes = request.param
    return compiled_under(triton, "compile_hopper.py", *shapes)


def test_kernels_fit_the_chip(compiled: dict[str, Any]) -> None:
    names = {kernel["kernel"].removeprefix("128/256 ") for kernel in compiled["kernels"]}
    assert {"h", "h normalised", "dq", "dk", "dv", "dk and dv", "C, n", "dC"} <= names
    oldest = compiled["triton"] == "3.6.0"
    for kernel in compiled["kernels"]:
        assert kernel["shared_bytes"] <= SHARED_BYTES, kernel
        spilled_bytes = SPILLED_BYTES if oldest else SPILLED_BYTES_NEWER[kernel["kernel"].split()[0]]
        if oldest and "dk and dv" in kernel["kernel"]:
            without = "without row sums" in kernel["kernel"]
            spilled_bytes = SPILLED_BYTES_OF_PAIR if without else SPILLED_BYTES_OF_PAIR_WITH_SUMS
        if "of every tile" in kernel["kernel"] or "gradients" in kernel["kernel"]:
            spilled_bytes = 0
        assert kernel["spilled_bytes"] <= spilled_bytes, kernel


def test_products_are_asynchronous(compiled: dict[str, Any]) -> None:
    """C75xx: ptxas serialises them."""
    for kernel in compiled["kernels"]:
        assert not kernel["warnings"], kernel


@pytest.mark.skipif(torch.cuda.is_available(), reason="in Triton's interpreter")
@pytest.mark.parametrize("split", [1, 2])
@pytest.mark.parametrize(("reverse", "resumed"), [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("end", [True, False])
def test_segments_start_from_what_those_before_added_and_the_last_is_read_only_for_the_end(
    split: int, reverse: bool, end: bool, resumed: bool
):
    """Of `split` parts each, of 2 tiles, and a first one of fewer; forward also from what the second starts from."""
    torch.manual_seed(0)
    rows, segments, elements = 2, 3, 48
    parts, tiles = {1: (3, 5), 2: (5, 9)}[split]
    added, g = torch.randn(rows, parts, elements), -torch.rand(rows, tiles)
    order = list(range(parts))[:: -1 if reverse else 1]
    segment_of = [segments - 1 - (parts - 1 - part) // split for part in range(parts)]
    of_the_last = [part for part in order if segment_of[part] == segment_of[order[-1]]]
    if not end:
        added[:, of_the_last] = torch.nan
    kept = [g[:, max(0, tiles - 2 * (parts - n)) : tiles - 2 * (parts - n - 1)].sum(1) for n in range(parts)]
    kept = torch.stack(kept, 1).exp2()[..., None]
    given = added.clone()
    state = given if split == 1 and not resumed else torch.full((rows, segments, elements), torch.nan)
    lowest = segment_of.index(1) if resumed or (reverse and not end) else 0
    if resumed:
        state[:, 1] = torch.zeros(rows, elements) + sum(
            added[:, n] * kept[:, n + 1 : lowest].prod(1) for n in range(lowest)
        )
        given[:, :lowest] = torch.nan
    after = torch.full((rows, elements), torch.nan)
    kernel: Any = carry
    accumulated = parts - lowest - (0 if end or reverse else len(of_the_last))
    config = CarryConfig(
        tiles=2, block=64, reverse=reverse, resumed=resumed, store_final_state=end, overlap=False
    )  # fmt: skip
    kernel[(rows,)](
        CarriedStates(given, state, state, after), g, elements, tiles, 2, parts, segments, split, lowest, accumulated,
        config=config,
    )  # fmt: skip
    wanted, before = torch.zeros(rows, elements), None
    for n in order:
        if segment_of[n] != before:
            torch.testing.assert_close(state[:, segment_of[n]], wanted)
        before = segment_of[n]
        wanted = wanted * kept[:, n] + added[:, n]
    torch.testing.assert_close(after, wanted if end else torch.full_like(after, torch.nan), equal_nan=True)


@pytest.mark.parametrize(
    ("batch", "heads", "T", "d_qk", "d_hv", "bandwidth", "training", "in_training", "forward"),
    [
        (16, 16, 4096, 128, 256, 5.0, 1, (1, 1), (1, 1)),
        (4, 16, 16384, 128, 256, 5.0, 2, (1, 1), (1, 1)),
        (1, 16, 65536, 128, 256, 5.0, 8, (5, 8), (5, 8)),
        (8, 8, 8192, 256, 512, 5.0, 1, (1, 1), (1, 1)),
        (4, 8, 16384, 256, 512, 5.0, 1, (1, 1), (1, 1)),
        (1, 8, 65536, 256, 512, 5.0, 4, (5, 5), (5, 5)),
        # 16 programs of half a state a head were a third slower (version 19), 47 in training a fifteenth (version 20).
        (1, 1, 65536, 128, 256, 5.0, 64, (64, 64), (47, 47)),
        (2, 4, 1000, 128, 256, 5.0, 8, (1, 1), (1, 1)),
        # With less bandwidth a program is bound by memory sooner, and fewer segments read K and V again.
        (4, 16, 16384, 128, 256, 3.5, 1, (1, 1), (1, 1)),
        (2, 16, 32768, 128, 256, 3.5, 4, (1, 3), (1, 3)),
        (1, 16, 65536, 128, 256, 3.5, 8, (4, 4), (4, 4)),
        (1, 8, 65536, 256, 512, 3.5, 4, (5, 5), (5, 5)),
    ],
)
def test_sequences_are_cut_where_programs_would_leave_multiprocessors_idle(
    batch: int, heads: int, T: int, d_qk: int, d_hv: int, bandwidth: float, training: int,
    in_training: tuple[int, int], forward: tuple[int, int], monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    """Of 132. At T = 16384 and 128/256 dq and dk alone would: 64 programs, half a state each; h has two a state.
    Segments of backward, of forward with a backward to come, and of forward alone (sig, exp).
    """
    device = Device(90, 132, bandwidth)
    monkeypatch.setattr(hopper_chunkwise, "refuses", lambda *_, **__: None)
    monkeypatch.setattr(hopper_chunkwise.device, "figures", lambda _: device)
    q, v = (torch.empty(batch, heads, T, d, device="meta") for d in (d_qk, d_hv))

    def segments(gate: Gate, backward: bool) -> int:
        return -(-T // hopper_chunkwise.default_chunk_size(q, v, gate=gate, backward=backward))

    assert segments(MLSTM_SIG, backward=True) == segments(MLSTM_EXP, backward=True) == training
    assert (segments(MLSTM_SIG, backward=False), segments(MLSTM_EXP, backward=False)) == forward
    of_forward = [
        plans.forward(
            Sizes.of(q, v), device, hopper_chunkwise.default_chunk_size(q, v, gate=gate, backward=True),
            normalise=gate.normalize, cut_freely=True,
        ).cut.count
        for gate in (MLSTM_SIG, MLSTM_EXP)
    ]  # fmt: skip
    assert tuple(of_forward) == in_training


@pytest.mark.parametrize(
    ("clock", "width", "wanted"),
    [(2_619_000, 5120, 3.5), (3_201_000, 6144, 5.0), (0, 0, Device(90, 132).bandwidth)],  # kHz, bits
)
def test_bandwidth_is_what_the_driver_tells(clock: int, width: int, wanted: float, monkeypatch: pytest.MonkeyPatch):
    """3.35 and 4.92 TB/s, which datasheets give as 3.35 and 4.8; a driver that says nothing counts as the usual GPU."""
    told = SimpleNamespace(multi_processor_count=132, memory_clock_rate=clock, memory_bus_width=width)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: told)
    bandwidth = hopper_chunkwise.device.bandwidth.__wrapped__
    assert bandwidth(torch.device("cuda", 0)) == wanted
    assert {in_steps(x) for x in (3.35e12, 3.352e12)} == {3.5}
    assert {in_steps(x) for x in (4.8e12, 4.917e12)} == {5.0}
