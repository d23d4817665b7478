"""The source of the fused Hopper kernels, run on the CPU with their host code (gluon_on_cpu.py) at small shapes, and
held to what they are held to on a GPU (tfla_cases.py).
"""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is imported

pytest.importorskip("triton.experimental.gluon")

import tfla_cases
from compiled import EVERY
from gluon_on_cpu import Deadlock, Machine, launch_on, run_on_chip
from tfla_cases import Case, draw, failures, planned_anew

from tflabench.kernels.backends import kernels_of
from tflabench.kernels.common.contract import Arguments, KernelOptions
from tflabench.kernels.common.sizes import Device, Sizes
from tflabench.kernels.scalar.hopper import (
    backward,
    forward,
    segment_states,
    tile_gradients,
)  # fmt: skip
from tflabench.kernels.scalar.plan import hopper as plans
from tflabench.kernels.state import State

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="gates are computed in Triton's interpreter")

SMALL = Case(gate="sig", T=330, batch=1, heads=2, d_qk=128, d_hv=128, L=512)
IN_SEGMENTS = Case(gate="sig", T=700, batch=1, heads=4, d_qk=64, d_hv=64, L=384)
SHARED_IN_SEGMENTS = replace(IN_SEGMENTS, heads=8, sharing=4)  # gradients tile by tile
TOGETHER = Case(gate="simple_gla", T=384, batch=1, heads=8, sharing=4, d_qk=64, d_hv=64, L=256)
NO_GATE_GRADIENTS = frozenset({"df", "di"})


def run_on(machine: Machine, monkeypatch: pytest.MonkeyPatch, gate_gradients: bool = True) -> None:
    launch_on(machine, monkeypatch)
    found = kernels_of("scalar", "hopper")

    def forward(arguments: Arguments, options: KernelOptions) -> Any:
        h, last, saved = found.forward(arguments, options)
        announced = found.empty_saved(arguments.q, arguments.v, options)
        assert [(x.shape, x.dtype) for x in saved] == [(x.shape, x.dtype) for x in announced]
        return h, last, saved

    def backward(dh: Any, d_last: Any, arguments: Any, saved: Any, options: KernelOptions) -> Any:
        return found.backward(dh, d_last, arguments, saved, options._replace(gate_gradients=gate_gradients))

    fused = SimpleNamespace(forward=forward, backward=backward)
    monkeypatch.setattr(tfla_cases, "chunkwise", fused)


def cases() -> list[Any]:
    one: dict[str, Any] = {"batch": 1, "heads": 1}
    wide: dict[str, Any] = {"d_qk": 128, "d_hv": 256}
    together: dict[str, Any] = {"batch": 1, "heads": 8, "sharing": 4, "d_qk": 64, "d_hv": 64}
    newer = [
        Case(gate="sig", T=200, batch=1, heads=2, d_qk=64, d_hv=64, L=512),
        Case(gate="sig", T=330, batch=1, heads=4, sharing=2, L=512, states=True, **wide),
        Case(gate="sig", T=130, d_qk=256, d_hv=512, L=128, dtype=torch.float16, **one),
        Case(gate="sig", T=330, d_qk=192, d_hv=128, L=128, states=True, **one),
        Case(gate="sig", T=200, L=512, gates="documents", **wide, **one),
        Case(gate="exp", T=330, batch=1, heads=2, d_qk=64, d_hv=128, L=128, layout="bthd", states=True),
        Case(gate="exp", T=200, batch=1, heads=4, d_qk=128, d_hv=64, L=512, dtype=torch.float16),
        Case(gate="exp", T=200, d_qk=256, d_hv=128, L=512, states=True, **one),
        Case(gate="exp", T=200, L=128, gates="extreme", **wide, **one),
        Case(gate="sig", T=600, d_qk=256, d_hv=64, L=1024, gates="slow", **one),
        Case(gate="sig_normalized", T=330, batch=1, heads=2, d_qk=64, d_hv=64, L=128, states=True),
        Case(gate="exp_bare", T=330, batch=1, heads=4, sharing=2, d_qk=64, d_hv=64, L=128),
        # Of row sums in which a pair of steps is not the same number twice, 1% of df or more is noise here.
        Case(gate="sig", T=2048, batch=1, heads=1, d_qk=64, d_hv=64, L=2048, gates="closing"),
        Case(gate="sig", T=2048, batch=1, heads=1, d_qk=64, d_hv=64, L=256, gates="closing"),
        Case(gate="decay_and_step", T=330, L=128, **together),
        Case(gate="retention", T=200, L=512, states=True, **together),
    ]
    older = [
        Case(gate="sig", T=200, L=128, **wide, **one),
        Case(gate="exp", T=130, d_qk=256, d_hv=128, L=512, states=True, **one),
        Case(gate="exp", T=600, d_qk=256, d_hv=64, L=1024, gates="slow", states=True, **one),
    ]
    return [pytest.param(case, True, id=f"newer-{case}") for case in newer] + [
        pytest.param(case, False, id=f"older-{case}") for case in older
    ]


@pytest.mark.parametrize(("case", "newer"), cases())
def test_at_most_twice_as_wrong_as_plain_pytorch(case: Case, newer: bool, monkeypatch: pytest.MonkeyPatch):
    run_on(Machine(seed=case.T, newer=newer), monkeypatch)
    assert failures(case) == []


def test_nothing_is_nan_where_a_denominator_underflows(monkeypatch: pytest.MonkeyPatch):
    run_on(Machine(seed=0), monkeypatch)
    tfla_cases.check_underflow(Case(gate="exp", T=70, batch=1, heads=1, d_qk=64, d_hv=64, L=128))


@pytest.mark.parametrize(
    "case",
    [Case(gate="sig", T=330, batch=1, heads=2, d_qk=d, d_hv=2 * d, L=128, states=True) for d in (64, 128)],
    ids=str,
)
def test_dk_and_dv_in_one_walk(case: Case, monkeypatch: pytest.MonkeyPatch):
    run_on(Machine(seed=1), monkeypatch, gate_gradients=False)
    assert failures(case, absent=NO_GATE_GRADIENTS) == []


@pytest.mark.parametrize("sharing", [1, 4])
def test_a_skip_connection_is_one_to_the_outputs_and_to_the_gradients_of_v(sharing: int, monkeypatch: Any):
    run_on(Machine(seed=2), monkeypatch)
    case = Case(gate="simple_gla", T=200, batch=1, heads=4, sharing=sharing, d_qk=64, d_hv=64, L=512)
    x, grads = draw(case)
    given = Arguments(*(x[name] for name in ("q", "k", "v", "f", "i")))  # type: ignore[arg-type]
    skip = torch.randn(case.heads)
    options = KernelOptions(tfla_cases.GATES[case.gate], 0.125, case.L)

    def both(**skipped: Any) -> tuple[Any, Any]:
        arguments = given._replace(**skipped)
        h, _, saved = tfla_cases.chunkwise.forward(arguments, options)
        return h, tfla_cases.chunkwise.backward(grads["h"], None, arguments, saved, options)

    h, without = both()
    h_more, found = both(skip=skip)
    v, dh = x["v"].double(), grads["h"].double()  # type: ignore[union-attr]
    for more, less, of in ((h_more, h, v), (found[2], without[2], dh)):
        expected = less.double() + skip.double()[:, None, None] * of
        assert (more.double() - expected).norm() < 6e-3 * expected.norm()  # both rounded to bfloat16, P once more
    assert torch.allclose(found[-1].double(), (v * dh).sum((0, 2, 3)), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("heads", [1, 4, 8])
@pytest.mark.parametrize(("T", "L", "layout"), [(200, 128, "bhtd"), (256, 512, "bthd")])  # 256: dC lies where dv goes
def test_dq_and_dk_of_heads_are_added_up_in_a_program(
    heads: int, T: int, L: int, layout: str, monkeypatch: pytest.MonkeyPatch
):
    run_on(Machine(seed=heads), monkeypatch)
    planned_anew(monkeypatch, "heads_added_up", lambda *_: heads)
    sizes: dict[str, Any] = {"T": T, "batch": 1, "heads": 8, "sharing": 8, "d_qk": 64, "d_hv": 64, "L": L}
    assert failures(Case(gate="decay_and_step", layout=layout, states=True, **sizes)) == []


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("gate_gradients", [True, False])
def test_right_in_any_order(seed: int, gate_gradients: bool, monkeypatch: pytest.MonkeyPatch):
    """As the mistakes below are tried, but without one."""
    run_on(Machine(seed=seed), monkeypatch, gate_gradients)
    assert failures(SMALL, absent=frozenset() if gate_gradients else NO_GATE_GRADIENTS) == []


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("gate_gradients", [True, False])
def test_heads_that_share_q_and_k_in_any_order(seed: int, gate_gradients: bool, monkeypatch: pytest.MonkeyPatch):
    run_on(Machine(seed=seed), monkeypatch, gate_gradients)
    assert failures(TOGETHER, absent=frozenset() if gate_gradients else NO_GATE_GRADIENTS) == []


@pytest.mark.parametrize("gate", ["sig", "exp"])
def test_a_chip_of_which_half_would_be_idle(gate: str, monkeypatch: pytest.MonkeyPatch):
    """Then h has half as many rows a program and a state pass cuts segments in parts."""
    chip = 40
    case = Case(gate=gate, T=1100, batch=1, heads=1, d_qk=64, d_hv=256, L=640, states=True)
    sizes = Sizes(case.batch, case.heads, 1, case.T, case.d_qk, case.d_hv)
    plan = plans.forward(sizes, Device(90, chip), case.L, normalise=gate == "exp", end=True)
    assert gate == "exp" or plan.h.pieces == 2
    assert plan.state_pass
    assert plan.state_pass.parts.per_segment == 2
    run_on(Machine(seed=5), monkeypatch)
    run_on_chip(chip, monkeypatch)
    assert failures(case) == []


@pytest.mark.parametrize(
    ("case", "parts"),
    [
        (Case(gate="simple_gla", T=1700, batch=1, heads=1, d_qk=64, d_hv=256, L=384), 1),
        (Case(gate="exp", T=1200, batch=1, heads=1, d_qk=128, d_hv=128, L=512, states=True), 1),
        (Case(gate="sig", T=2310, batch=1, heads=1, d_qk=64, d_hv=64, L=1024, states=True), 2),
    ],
    ids=str,
)
@pytest.mark.parametrize("last", [True, False])
def test_a_short_first_segment_beside_the_state_pass(case: Case, parts: int, last: bool, monkeypatch: Any):
    """Where nobody asks for the last state a pass goes over one segment less."""
    run_on(Machine(seed=6), monkeypatch)
    concurrent: list[bool] = []

    def launch_segment_states(inputs: Any, of: plans.StatePass, **options: Any) -> Any:
        concurrent.append(of.resumed and options["first_segment"] is not None)
        assert of.end or of.parts.per_segment == parts
        return segment_states.launch_segment_states(inputs, of, **options)

    def forward_of_both(arguments: Arguments, options: KernelOptions) -> Any:
        h, state, saved = forward.forward(arguments, options._replace(return_last_state=last))
        return h, state if last else forward.forward(arguments, options)[1], saved

    chip = 40
    run_on_chip(chip, monkeypatch)
    monkeypatch.setattr(forward, "launch_segment_states", launch_segment_states)
    monkeypatch.setattr(tfla_cases, "chunkwise", SimpleNamespace(forward=forward_of_both, backward=backward.backward))
    assert failures(case) == []
    assert concurrent
    assert all(concurrent)


@pytest.mark.parametrize(
    ("case", "own", "chip"),
    [
        (Case(gate="sig", T=600, batch=1, heads=1, d_qk=64, d_hv=256, L=192, states=True), 640, 40),  # uncut, half rows
        (Case(gate="exp", T=1000, batch=1, heads=1, d_qk=128, d_hv=64, L=320), 512, 3),
        (Case(gate="sig", T=1000, batch=1, heads=1, d_qk=256, d_hv=64, L=320, gates="slow"), 448, 40),  # first beside
        (Case(gate="exp", T=1000, batch=1, heads=1, d_qk=64, d_hv=64, L=256, states=True), 448, 40),
    ],
    ids=str,
)
def test_forward_cut_otherwise_than_backward(case: Case, own: int, chip: int, monkeypatch: Any):
    """h then writes down the states that segments of backward start from."""
    run_on(Machine(seed=7), monkeypatch)
    run_on_chip(chip, monkeypatch)

    def of_own(arguments: Arguments, options: KernelOptions) -> Any:
        return forward.forward(arguments, options._replace(cut_freely=True))

    chosen = SimpleNamespace(chunk_size=lambda _T: own)
    planned_anew(monkeypatch, "hopper_segments.chosen_for_forward", lambda _shape: chosen)
    monkeypatch.setattr(tfla_cases, "chunkwise", SimpleNamespace(forward=of_own, backward=backward.backward))
    assert failures(case) == []


NARROW = [
    Case(gate="sig", T=150, d_qk=32, d_hv=32, L=64, batch=1, heads=1, states=True),
    Case(gate="exp", T=130, d_qk=48, d_hv=80, L=1024, batch=1, heads=1, states=True),
    Case(gate="exp", T=150, d_qk=96, d_hv=32, L=64, batch=1, heads=1, layout="bthd"),
    Case(gate="sig", T=100, d_qk=32, d_hv=272, L=1024, batch=1, heads=1, states=True),
    Case(gate="simple_gla", T=128, d_qk=32, d_hv=32, L=64, batch=1, heads=8, sharing=4, states=True),
    Case(gate="mamba2", T=100, d_qk=48, d_hv=64, L=1024, batch=1, heads=4, sharing=4),
    Case(gate="sig", T=128, d_qk=32, d_hv=32, L=1024, batch=1, heads=2, layout="bthd", states=True),
    Case(gate="mamba2", T=128, d_qk=48, d_hv=64, L=64, batch=1, heads=4, sharing=4, layout="bthd", states=True),
]


@pytest.mark.parametrize(("case", "gate_gradients"), [*zip(NARROW, cycle([True, False]))], ids=str)
def test_heads_that_do_not_fill_their_blocks(case: Case, gate_gradients: bool, monkeypatch: pytest.MonkeyPatch):
    run_on(Machine(seed=8), monkeypatch, gate_gradients)
    assert failures(case, absent=frozenset() if gate_gradients else NO_GATE_GRADIENTS) == []


@pytest.mark.parametrize(
    ("T", "L", "own", "gate"), [(1000, 320, 1024, "sig"), (3000, 512, 3072, "exp"), (2100, 1024, None, "sig")]
)
def test_df_in_segments_is_as_exact_as_in_plain_pytorch(T: int, L: int, own: int | None, gate: str, monkeypatch: Any):
    """Of slow gates, whose sums go over all steps: also where h, which rounds otherwise, made the states at borders."""
    run_on(Machine(seed=7), monkeypatch)
    run_on_chip(40, monkeypatch)

    def of_own(arguments: Arguments, options: KernelOptions) -> Any:
        return forward.forward(arguments, options._replace(cut_freely=own is not None))

    chosen = SimpleNamespace(chunk_size=lambda _T: own)
    planned_anew(monkeypatch, "hopper_segments.chosen_for_forward", lambda _shape: chosen)
    monkeypatch.setattr(tfla_cases, "chunkwise", SimpleNamespace(forward=of_own, backward=backward.backward))
    case = Case(gate=gate, T=T, batch=1, heads=1, d_qk=64, d_hv=64, L=L, gates="slow", states=T < 3000)
    ours, plain = tfla_cases.errors(case, 1)["df"]
    assert ours <= 1.25 * plain


def test_states_of_several_heads_in_any_order(monkeypatch: pytest.MonkeyPatch):
    run_on(Machine(seed=3), monkeypatch, gate_gradients=False)
    assert failures(IN_SEGMENTS, absent=NO_GATE_GRADIENTS) == []


@pytest.mark.parametrize(
    "case",
    [
        Case(gate="sig", T=200, batch=1, heads=1, d_qk=64, d_hv=128, L=64, states=True),
        replace(TOGETHER, gate="retention", heads=4, T=128, states=True),
    ],
    ids=["segments", "one segment, tile by tile"],
)
def test_a_part_of_a_sequence_gives_its_last_state_before_it_takes_its_first(case: Case, monkeypatch: Any):
    launch_on(Machine(seed=4), monkeypatch)
    x, grads = draw(case)
    part: Any = Arguments(*(x[name] for name in ("q", "k", "v", "f", "i")))  # type: ignore[arg-type]
    start, d_last = State(x["C"]), State(grads["C"])  # type: ignore[arg-type]
    options = KernelOptions(tfla_cases.GATES[case.gate], 0.125, case.L)
    run, whole = kernels_of("scalar", "hopper"), part._replace(initial=start)
    added = run.forward(part, options)[1]
    h, last, saved = run.forward(whole, options)
    wanted = run.backward(grads["h"], d_last, whole, saved, options)
    d_start = run.backward(grads["h"], None, whole, saved, options)[5]
    given: list[Any] = []

    def exchange(returned: State) -> Any:
        return lambda state: (given.append(state.C), returned)[1]

    ours, ours_last, saved = run.forward(part, options._replace(exchange=exchange(start)))
    made = run.backward(grads["h"], None, whole, saved, options._replace(exchange=exchange(d_last)))
    assert added is not None and last is not None and ours_last is not None  # noqa: PT018
    states = [(ours_last.C, last.C), (given[0], added.C), (given[1], d_start)]
    pairs = [(ours, h), *states, *zip(made, wanted, strict=True)]
    for found, expected in pairs:
        assert expected is None or (found.double() - expected.double()).norm() <= 5e-3 * expected.double().norm()


def test_what_h_reads_before_it_waits_is_copied_before_the_kernel_it_waits_for(monkeypatch: pytest.MonkeyPatch):
    """q, k and v that TMA cannot take: h may fetch the copies as soon as the kernel before it has begun."""
    launched: list[str] = []

    def record(name: str, call: Any) -> Any:
        return lambda *args, **options: (launched.append(name), call(*args, **options))[1]

    run_on_chip(3, monkeypatch)
    monkeypatch.setattr(forward, "aligned", record("copy", torch.clone))
    monkeypatch.setattr(forward, "exponents", record("exponents", forward.exponents))
    monkeypatch.setattr(forward, "launch_walk", record("h", lambda *_, **__: None))
    x, _ = draw(SMALL)
    given = Arguments(*(x[name] for name in ("q", "k", "v", "f", "i")))  # type: ignore[arg-type]
    forward.forward(given, KernelOptions(tfla_cases.GATES["sig"], -0.3, 512))
    assert launched[:4] == ["copy", "copy", "copy", "exponents"]
    assert launched[-1] == "h"


MISTAKES = [  # `make compile` tries all of them, other tests every second one
    (
        "state_walk",
        "            scores.ring.producer_acquire(slot)\n            store_decays",
        "            store_decays",
    ),
    ("state_walk", "tma.store_wait(pendings=NUM_OUT - 1)", "pass"),  # the output is overwritten
    ("state_walk", "inputs.ring.consumer_wait(stage)\n    qk", "qk"),  # a tile that has not arrived
    ("state_walk", "            inputs.ring.consumer_release(stage)\n            stage", "            stage"),
    ("state_walk", "BLOCK_BYTES * (2 * BLOCKS_KEY", "BLOCK_BYTES * (3 * BLOCKS_KEY"),  # bytes that never come
    ("state_walk", "wait_for_products(2 * ACCUMULATORS, deps=(out,))", "wait_for_products(9, deps=(out,))"),
    ("state_walk", "scores.ring.consumer_wait(slot)", "pass"),
    ("state_walk", "ring.producer_acquire(stage)\n    fence", "fence"),  # a stage is overwritten
    ("state_walk", "allocate_ring(SLOTS, config.state_partitions)", "allocate_ring(SLOTS, 1)"),
    ("state_walk", "gl.exp2(x - after)", "gl.exp2(x - before)"),  # dv with decay deferred
    ("schedule", "work.first_tile + work.end_tile - 1 - turn", "turn"),  # a walk in the wrong direction
    ("schedule", "end_tile=end,", "end_tile=end - 1,"),  # a tile is left out
    ("schedule", "return decode_count(schedule.counts.independent) > 1", "return True"),  # states not yet there
    ("normaliser", "norm.parts_ready.wait(turn)", "pass"),
    ("normaliser", "norm.sums_ready.wait(turn)", "pass"),
    ("normaliser", "inputs.ring.consumer_wait(stage)", "pass"),
    (
        "backward_dqk",
        "scores.ring.producer_acquire(slot)\n            store_decays",
        "store_decays",
    ),  # P is overwritten
    ("backward_dqk", "output.ring.consumer_wait(slot)", "pass"),
    ("backward_dqk", "output.ring.producer_acquire(out_slot)", "pass"),  # the output is overwritten
    ("backward_dqk", "inputs.ring.consumer_wait(stage)", "pass"),  # a tile that has not arrived
    ("backward_dqk", "scores.ring.consumer_wait(slot)", "pass"),
    ("backward_dqk", "            inputs.ring.consumer_release(stage)\n            stage", "            stage"),
    ("state_walk", "VALUES: gl.constexpr = 2 if config.row_sums else 1", "VALUES: gl.constexpr = 1"),  # more bytes
    ("backward_dqk", "wait_for_products(2 * ACCUMULATORS, deps=(out,))", "wait_for_products(9, deps=(out,))"),
    ("backward_dkdv", "scores.ring.consumer_wait(turn)", "pass"),
    ("backward_dkdv", "copies.ring.consumer_wait(copy)", "pass"),
    ("backward_dkdv", "inputs.k_read.wait(turn)", "pass"),
    ("backward_dkdv", "copies.ring.producer_acquire(copy)", "pass"),
    ("backward_dkdv", "copies.written.wait(copy)", "pass"),
    ("backward_dkdv", "values.dv_written.wait(slot)", "pass"),
    ("backward_dkdv", "decays.full.wait(stage)", "pass"),
    ("backward_dkdv", "inputs.dk_written.wait(stage)", "pass"),
    ("backward_dkdv", "scores.ring.producer_acquire(turn)", "pass"),
    ("segment_states", "ring.consumer_wait(next_stage)", "pass"),
    ("segment_states", "ring.producer_acquire(stage)", "pass"),
    ("segment_states", "BLOCK_BYTES * (BLOCKS_QK + BLOCKS_HV)", "BLOCK_BYTES * (2 + BLOCKS_HV)"),
    ("segment_states", "return 0 if config.divide_rows else half * config.accumulators", "return 0"),
    ("segment_states", "tma.store_wait(pendings=0)\n    barrier()", "barrier()"),  # states kept are overwritten
    ("packed_heads", "scores.ring.producer_acquire(slot)", "pass"),
    ("packed_heads", "scores.ring.consumer_wait(slot)", "pass"),
    ("packed_heads", "tma.store_wait(pendings=PAIRS - 1)", "pass"),
    ("packed_heads", "allocate_ring(PAIRS, 2)", "allocate_ring(PAIRS, 1)"),
    ("tile_gradients", "scores.ring.producer_acquire(slot)", "pass"),  # pairs are overwritten
    ("tile_gradients", "heads.ring.producer_acquire(stage)", "pass"),
    ("tile_gradients", "shared.ring.producer_acquire(place)", "pass"),
    ("tile_gradients", "scores.ring.consumer_wait(slot)", "pass"),
    (
        "tile_gradients",
        "heads.ring.consumer_wait(stage)\n\n            # dV",
        "# dV",
    ),  # dv may go where dC has not been read
    ("tile_gradients", "heads.ring.consumer_wait(stage)\n    dq_state", "dq_state"),
    (
        "tile_gradients",
        "        shared.ring.consumer_wait(place)",
        "        mbarrier.wait(shared.ring.full.index(place.slot), work.turn & 1)",
    ),
    ("tile_gradients", "allocate_ring(STAGES, 3)", "allocate_ring(STAGES, 2)"),
    ("tile_gradients", "allocate_signal(SHARED, 2)", "allocate_signal(SHARED, 1)"),  # dq may go where q is read
    ("tile_gradients", "tma.store_wait(pendings=0)", "pass"),  # q of a later item where dq has not left
    ("tile_gradients", "allocate_ring(SLOTS, 2)", "allocate_ring(SLOTS, 1)"),
    ("tile_gradients", "tma.store_wait(pendings=1)", "pass"),  # dv is overwritten
    ("tile_gradients", "4 * BLOCK_BYTES", "3 * BLOCK_BYTES"),  # dC may arrive after dv is written
    ("tile_gradients", "wait_for_products(0, deps=(dk, dq))", "wait_for_products(1, deps=(dk, dq))"),
]


@pytest.mark.parametrize(("source", "right", "mistaken"), MISTAKES if EVERY else MISTAKES[::2])
def test_a_mistake_shows(source: str, right: str, mistaken: str, monkeypatch: pytest.MonkeyPatch):
    """In one of a few orders, by the numbers, a deadlock, or registers touched while a product still writes them."""

    def edit(name: str, text: str) -> str:
        assert name != source or right in text
        return text.replace(right, mistaken) if name == source else text

    config_of = tile_gradients.TileGradientsConfig.of

    def shows(seed: int) -> bool:
        gate_gradients = source != "backward_dkdv"
        run_on(Machine(seed=seed, edit=edit), monkeypatch, gate_gradients)
        if "heads.ring.producer_acquire" in right:  # a ring that the few heads of a program go round
            of = lambda *heads, **branches: replace(config_of(*heads, **branches), num_stages=2)  # noqa: E731
            monkeypatch.setattr(tile_gradients.TileGradientsConfig, "of", of)
        case = {"segment_states": IN_SEGMENTS, "packed_heads": TOGETHER, "tile_gradients": TOGETHER}.get(source, SMALL)
        case = replace(case, gate="exp") if source == "normaliser" else case
        case = replace(case, d_qk=256) if source == "schedule" or "x - after" in right else case  # dv has its own walk
        if "independent" in right:
            case = IN_SEGMENTS
        if "store_wait" in right and source in ("segment_states", "tile_gradients"):
            case = SHARED_IN_SEGMENTS
        try:
            return failures(case, absent=frozenset() if gate_gradients else NO_GATE_GRADIENTS) != []
        except (Deadlock, AssertionError, TypeError, AttributeError):
            return True

    assert any(shows(seed) for seed in range(4))
