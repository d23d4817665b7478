"""What the fused Hopper kernels compile to, how sequences are cut for them, and states carried over segments."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tflabench.kernels.types import MLSTM_EXP, MLSTM_SIG, Gate

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is imported

pytest.importorskip("triton.experimental.gluon")

from compiled import EVERY, compiled_under

from tflabench.kernels.common.sizes import Device, Sizes, in_steps
from tflabench.kernels.scalar.hopper import chunkwise as hopper_chunkwise
from tflabench.kernels.scalar.hopper.config import CarryConfig
from tflabench.kernels.scalar.hopper.segment_states import CarriedStates, carry
from tflabench.kernels.scalar.plan import hopper as plans

SHARED_BYTES = 232_448
SPILLED_BYTES = 256  # stores and loads, outside the loops over tiles but for a few in the normalised h of 256/512
SPILLED_BYTES_NEWER = {"128/256": 160, "256/512": 320, "64/64": 128}  # on Triton 3.9
# Its roles fill their registers, and a few in a loop cost much: without row sums there is 0, with them 32 to 48.
SPILLED_BYTES_OF_PAIR, SPILLED_BYTES_OF_PAIR_WITH_SUMS = 16, 48

# Each kernel once, in the branches that load a program most: what compiles with more to do compiles with less. With the
# newest Triton, which takes twice as long, the one that has most roles and comes nearest to what it may spill.
COMPILED = {
    "installed": ["128/256:h normalised for segments"],
    "oldest": [
        "128/256:dq;dk and dv;dC",
        "256/512:h normalised for segments;dv",
        "64/64:h of segments of heads together;dC of every tile;gradients with a skip connection",
    ],
}
if EVERY:
    COMPILED = {
        "installed": [
            "128/256:h;h normalised for segments;h normalised of half the rows;h for segments"
            ";dq;dq without row sums;dk;dv;dk and dv;dk and dv without row sums;C, n;dC",
            "256/512:h normalised for segments;dq;dv;C, n",
            "64/64:h of segments of heads together;C of heads together;dC of every tile"
            ";dC of every tile, of heads of their own"
            ";gradients;gradients with a skip connection;gradients without row sums",
        ],
        "oldest": [
            "128/256:h;h normalised;h normalised of half the rows;dq;dq without row sums;dk;dk and dv;C, n",
            "256/512:h normalised;dv",
            "64/64:h of heads together;dC of every tile;gradients;gradients of a head",
        ],
    }


@pytest.fixture(scope="module", params=COMPILED)
def compiled(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The Triton that ran and what each kernel uses, compiled in a process of its own (this one interprets)."""
    found = compiled_under(request.param, "compile_hopper.py", *COMPILED[request.param])
    assert len(found["kernels"]) == sum(names.count(";") + 1 for names in COMPILED[request.param])
    return found


def test_kernels_fit_the_chip(compiled: dict[str, Any]) -> None:
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
        tiles=2, block=32, reverse=reverse, resumed=resumed, store_final_state=end, overlap=False
    )  # fmt: skip
    kernel[(2 * rows,)](  # two blocks of elements, of which the second is half full
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
    told = SimpleNamespace(
        major=9, minor=0, multi_processor_count=132, memory_clock_rate=clock, memory_bus_width=width
    )  # fmt: skip
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: told)
    figures = hopper_chunkwise.device.figures.__wrapped__
    assert figures(torch.device("cuda", 0)) == Device(90, 132, wanted)
    assert {in_steps(x) for x in (3.35e12, 3.352e12)} == {3.5}
    assert {in_steps(x) for x in (4.8e12, 4.917e12)} == {5.0}
