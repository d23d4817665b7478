"""The cost model of the fused kernels: products by an operation counter, bytes and segments as in docs/kernels.md."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest

from tflabench.kernels.common.contract import Arguments, KernelOptions
from tflabench.kernels.common.sizes import Device, Sizes, in_steps
from tflabench.kernels.scalar.plan import hopper as plans
from tflabench.kernels.scalar.plan.hopper import Kernel, TileGradients, Walk
from tflabench.kernels.scalar.plan.hopper_segments import Segments
from tflabench.kernels.scalar.plan.hopper_shapes import TILE, WalkShape
from tflabench.problem import Problem
from tflabench.theory import fused, walk_counts
from tflabench.theory.call_cost import call_cost
from tflabench.theory.fused import step_bytes
from tflabench.theory.hardware import Ceilings, find
from tflabench.theory.launches import Modelled
from tflabench.theory.walk_counts import tensor_bytes

FIG_4 = Problem(batch=16, heads=16, seq_len=4096, d_qk=128, d_hv=256)
WIDE = Problem(batch=8, heads=8, seq_len=8192, d_qk=256, d_hv=512)


SIG, EXP, FIXED = Modelled("fused", "sig"), Modelled("fused", "exp"), Modelled("fused", "sig", gate_gradients=False)


def shared(problem: Problem, group: int) -> Problem:
    """Return a problem of which so many heads share one of q and k."""
    return problem.with_(heads_qk=problem.heads // group) if group > 1 else problem


def kernels(problem: Problem, gate_gradients: bool = True, group: int = 1) -> tuple[Kernel, ...]:
    """Of one segment."""
    kernel = SIG if gate_gradients else FIXED
    return fused.launched(fused.planned(shared(problem, group), kernel, problem.seq_len))


def walks(problem: Problem, gate_gradients: bool = True, group: int = 1) -> tuple[Walk, ...]:
    return tuple(kernel for kernel in kernels(problem, gate_gradients, group) if isinstance(kernel, Walk))


H200 = replace(find("H200"), ceilings=Ceilings(782e12, 4.26e12, "measured", "calibrate"))


@pytest.mark.parametrize("gate", ["exp", "sig"])
def test_the_products_are_those_an_operation_counter_sees_in_the_reference(gate):
    """In chunks of one tile; what a walk computes although an earlier one has is left out. F_causal = 1."""
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    from tflabench.implementations.mlstm import GATES
    from tflabench.kernels.scalar import reference

    p = Problem(batch=1, heads=2, seq_len=3 * TILE, d_qk=64, d_hv=128, pass_="fwbw")
    tokens = (p.batch, p.heads, p.seq_len)
    shapes = {"q": (*tokens, p.d_qk), "k": (*tokens, p.d_qk), "v": (*tokens, p.d_hv), "f": tokens, "i": tokens}
    inputs = {name: torch.randn(shape, requires_grad=True) for name, shape in shapes.items()}
    with FlopCounterMode(display=False) as counter:
        reference.chunkwise(**inputs, gate=GATES[gate], chunk_size=TILE)[0].sum().backward()
    steps = p.batch * p.heads * p.seq_len
    once = 0.0
    for walk in walks(p):
        flops = walk_counts.flops(walk, 1)
        once += flops["outputs"] + flops["through state"]
        once += 0 if walk_counts.scores_again(walk) else flops["scores"]
        once += 0 if walk_counts.state_again(walk) else 2 * p.d_qk * p.d_hv  # without the decay, which is no product
    q_n = 2 * p.d_qk if gate == "exp" else 0  # one more product in the reference
    assert counter.get_total_flops() == steps * (once + q_n)


def test_the_products_of_a_tile_are_those_of_the_kernels_that_share_them():
    """The algebra of a tile in packed_heads.py, backward_dkdv.py and tile_gradients.py, by an operation counter."""
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    def flops(compute) -> int:
        with FlopCounterMode(display=False) as counter:
            compute()
        return counter.get_total_flops()

    def modelled(walk: Walk) -> float:
        """Of a tile of a program's heads, without the decay of the state, which is no product."""
        step = sum(walk_counts.flops(walk, 1).values()) - 2 * walk.rows * walk.columns / TILE
        return step * TILE * walk.together

    p = Problem(batch=1, heads=4, seq_len=64, d_qk=64, d_hv=64, pass_="fwbw")
    (h,) = walks(p, group=4)
    shared, own, states = torch.ones(64, 64), torch.ones(4, 64, 64), torch.ones(4, 64, 64)

    def of_four_heads():  # Q, K shared; V, out of every head
        P = shared @ shared.T * own
        return P @ own + shared @ states, own.mT @ shared

    assert modelled(h) == flops(of_four_heads)

    C, dC, gradients = kernels(p, group=4)[1:]
    of_one_head = torch.ones(64, 64)

    def dq_dk_and_dv():
        Q, K, V, dH, C, dC = (of_one_head,) * 6
        S, D = K @ Q.T, V @ dH.T
        return S @ dH + K @ dC, D @ Q + V @ dC.T, D.T @ K + dH @ C.T

    assert sum(walk_counts.flops(gradients, 1).values()) * TILE == flops(dq_dk_and_dv)
    for states_of_tiles in (C, dC):
        product = sum(walk_counts.flops(states_of_tiles, 1).values()) - 2 * 64 * 64 / TILE
        assert product * TILE == flops(lambda: of_one_head.T @ of_one_head)

    *_, pair = walks(p.with_(d_qk=128, d_hv=256), gate_gradients=False)
    qk, hv, dC = torch.ones(64, 128), torch.ones(64, 256), torch.ones(128, 256)

    def dk_and_dv():
        P, dP = qk @ qk.T, hv @ hv.T
        return dP @ qk + hv @ dC.T, P @ hv + qk @ dC, qk.T @ hv

    assert modelled(pair) == flops(dk_and_dv)


def test_bytes_a_step_are_those_of_the_kernels():
    """docs/kernels.md, 128/256 at 16 bits: h 1536, dq 1792 with what row sums read, dk and dv 2304: K, which these
    read, is read for dv anyway.
    """
    of_fig_4 = walks(FIG_4.with_(pass_="fwbw"))
    assert {walk.name: tensor_bytes(walk, 2) for walk in of_fig_4} == {
        "h": 1536,
        "dq": 1792,
        "dk, dv": 2304,
    }
    # Two float32 exponents each; sums of q through the state, of q and k within a tile, and of k through the state.
    assert [step_bytes(walk, FIG_4) - tensor_bytes(walk, 2) for walk in of_fig_4] == [
        8,
        8 + 3 * 4,
        8 + 4,
    ]
    # At 128/512 a program holds half of dC: two walks.
    wider = walks(FIG_4.with_(d_hv=512, pass_="fwbw"))
    assert {walk.name: tensor_bytes(walk, 2) for walk in wider[2:]} == {
        "dk": 2 * (2 * 512 + 3 * 128),
        "dv": 2560,
    }
    # At 256/512 programs share the columns of a state: k and q come through the L2, and there dq is added up.
    (dq,) = (walk for walk in walks(WIDE.with_(pass_="fwbw")) if walk.name == "dq")
    assert tensor_bytes(dq, 2) == 2 * (2 * 512 + 3 * 256)
    assert dq.sum_bytes == 3 * 4 * 4, "a part for every 128 of d_qk and 256 of d_hv"


def test_bytes_a_step_tile_by_tile():
    """decisions/2026-11-23-small-states.md: 128 for x, dh, dv, and for each state; q and k of 64 heads are nothing."""
    p = Problem(batch=16, heads=64, seq_len=4096, d_qk=64, d_hv=64, pass_="fwbw")
    _, C, dC, gradients = kernels(p, group=64)
    q_or_k = 128 / 64
    assert [step_bytes(kernel, p) for kernel in (C, dC)] == [128 + q_or_k + 128 + 4] * 2
    assert step_bytes(gradients, p) == 5 * 128 + 2 * q_or_k + 2 * 128 / 64 + 8 + gradients.sum_bytes
    assert gradients.sum_bytes == 4 * 4 + 4 / 64, "of q and k, within the tile and through a state; what passes it"
    *_, few = kernels(p.with_(batch=1, seq_len=1024), group=64)
    assert isinstance(few, TileGradients)
    assert few.together == 1, "few programs add nothing up"


@pytest.mark.parametrize("d", [32, 64])
def test_states_of_tiles_are_as_large_as_the_heads(d):
    """Bytes of C, written and read, and of dC, a step and head: d * d elements of 2 bytes a tile of 64 steps."""
    p = Problem(batch=4, heads=128, seq_len=8192, d_qk=d, d_hv=d, pass_="fwbw")
    plan = plans.backward(
        Sizes(p.batch, p.heads, 128, p.seq_len, d, d), Device(90, 132), p.seq_len, gate_gradients=False
    )
    steps = p.batch * p.heads * p.seq_len
    assert plan.by_tiles
    launched = fused.launches(shared(p, 128), FIXED, p.seq_len)
    moved = [launch.moved["states"] / steps for launch in launched[1:] if "states" in launch.moved]
    assert moved == [0, 2 * d * d / 64, 2 * d * d / 64, 2 * 2 * d * d / 64], "h has none in memory"
    assert plan.workspace_bytes(2) / steps == 2 * d * d / 64, "dC lies where dv goes"


# Head dimensions, heads that share q and k, whether gates have gradients, L.
CALLS = [
    (128, 256, 1, True, 2048),  # dk and dv in one walk
    (128, 256, 1, False, 2048),
    (128, 256, 1, True, 512),
    (128, 256, 1, False, 512),
    (128, 512, 1, False, 2048),
    (256, 512, 1, True, 512),
    (64, 64, 16, True, 2048),  # tile by tile; h of four heads a program
    (64, 64, 16, True, 512),
    (64, 64, 4, False, 2048),
    (64, 64, 2, True, 2048),
    (64, 64, 1, True, 512),
    (64, 64, 2, False, 2048),  # in walks
    (64, 64, 1, False, 512),
    (128, 64, 16, True, 2048),  # one head a program
]
FEW = [  # programs: more of half the rows, state passes of parts
    (128, 256, 1, True, 512, 1),
    (128, 256, 1, True, 1024, 2),
    (128, 512, 1, False, 2048, 2),
    (64, 256, 1, True, 1024, 2),
    (64, 64, 16, True, 1024, 2),
    (256, 512, 1, True, 1024, 1),
    (128, 256, 1, True, 768, 1),  # of 32 tiles 8, 12 and 12
    (64, 64, 16, True, 896, 1),  # 4, 14 and 14, but with heads together nothing is beside the state pass
]
BESIDE = [  # h of a short first segment beside the state pass
    (128, 256, 1, True, 896, 1),
    (128, 256, 1, False, 320, 1),  # 2 and 6 times 5
    (128, 512, 1, True, 896, 1),
    (256, 512, 1, True, 896, 1),
    (64, 64, 1, True, 896, 1),
]


@pytest.mark.parametrize("pass_", ["fw", "fwbw"])
@pytest.mark.parametrize(
    ("d_qk", "d_hv", "group", "gate_gradients", "chunk_size", "batch"), [(*call, 8) for call in CALLS] + FEW + BESIDE
)
def test_bytes_and_programs_are_those_the_host_code_launches(
    monkeypatch, d_qk, d_hv, group, gate_gradients, chunk_size, batch, pass_
):
    """All that the launched kernels are given to read and write, on tensors without data: each tensor once a launch,
    of query and key the launch's columns, and of those that only some segments are walked of these only.
    """
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton.experimental.gluon")
    from tflabench.kernels.scalar.gates import Exponents
    from tflabench.kernels.scalar.hopper import (
        backward,
        backward_dkdv,
        backward_dqk,
        backward_dv,
        forward,
        packed_heads,
        segment_states,
        tile_gradients,
    )  # fmt: skip
    from tflabench.kernels.scalar.hopper.schedule import Counts
    from tflabench.kernels.types import MLSTM_SIG

    p = Problem(batch=batch, heads=16, seq_len=2048, d_qk=d_qk, d_hv=d_hv, pass_=pass_)
    moved, programs, of_states = [], [], []

    class Recorded:
        def __init__(self, kernel, reads_and_writes):
            self.names, self.count = list(inspect.signature(kernel.fn).parameters), reads_and_writes

        def __getitem__(self, grid):
            given = {"grid": grid}
            return lambda *args, **options: self.count(given | dict(zip(self.names, args, strict=False)) | options)

    def tiles_of(given, lowest, count):  # what does not fill a segment is the first
        lacking = given["segments"] * given["segment_tiles"] - given["tiles"]
        return count * given["segment_tiles"] - lacking * (lowest == 0)

    def configured(given):
        counts = Counts(*(n >> 1 for n in given["counts"]))
        states, gates = (getattr(given.get("tensors"), name, given.get(name)) for name in ("states", "gates"))
        cut = {"tiles": given["num_tiles"], "segments": counts.num_segments, "segment_tiles": counts.segment_tiles}
        walked = counts.walked_segments
        if walked == 1 < counts.num_segments:
            of_states[-1] += given["num_items"]
        else:
            programs.append(given["num_items"])
        share = tiles_of(cut, counts.end_segment - walked, walked) / given["num_tiles"]
        for name in (name for name in given if name.endswith("_desc")):
            moved.append(given[name].base.nbytes * share)
        moved.extend(x.nbytes * share for x in (gates.x, gates.y))
        moved.append(states.initial.nbytes * (counts.loads > 1) * walked / counts.num_segments)
        moved.append(walked * p.batch * p.heads * d_qk * d_hv * 4 * (counts.stores > 1))

    def walk_dkdv(given):
        programs.append(given["num_items"])
        moved.extend(given[f"{name}_desc"].base.nbytes for name in ("q", "k", "v", "dh", "dk", "dv", "x", "y"))
        moved.append(given["tensors"].initial.nbytes * given["config"].load_initial_state)

    def walk_heads(given):
        programs.append(given["num_items"])
        config, states, gates = given["config"], given["states"], given["gates"]
        segments = given["counts"].num_segments >> 1
        moved.extend(given[f"{name}_desc"].base.nbytes for name in "qkvh")
        moved.extend(x.nbytes for x in (gates.x, gates.y))
        moved.append(states.initial.nbytes * config.load_initial_state)
        moved.append(segments * p.batch * p.heads * d_qk * d_hv * 4 * config.store_final_state)

    def gradients(given):
        tensors, counts, config = given["call"]
        programs.append(counts.num_items >> 1)
        names = ("q", "k", "v", "dh", "C", "dC", "x", "y", "dq", "dk", "dv")
        moved.extend(given[f"{name}_desc"].base.nbytes for name in names)
        moved.extend(x.nbytes * config.value.row_sums for x in (tensors.row_sums, tensors.through))

    def row_sums(*args, made=backward_dqk.empty_row_sums):
        found = made(*args)
        moved.extend(sums.every.nbytes for sums in found)  # every part is written
        return found

    def sum_shared(gradient, like, done=backward.sum_shared):
        moved.extend([gradient.nbytes, like.nbytes] if gradient.shape != like.shape else [])
        return done(gradient, like)

    def empty(*shape, dtype=torch.float32):
        return torch.empty(p.batch, *shape, dtype=dtype, device="meta")

    for module, name, count in (
        (forward, "walk_forward", configured), (backward_dv, "walk_backward_dv", configured),
        (backward_dqk, "walk_backward_dqk", configured), (backward_dqk, "walk_backward_dqk_with_sums", configured),
        (backward_dkdv, "pair", walk_dkdv), (tile_gradients, "gradients", gradients),
        (packed_heads, "walk_heads", walk_heads),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, Recorded(getattr(module, name), count))

    def accumulate(given):
        config, states = given["config"], given["states"]
        if config.keep_states:
            programs.append(given["grid"][0])
            moved.extend(given[f"{name}_desc"].base.nbytes for name in ("qk", "hv", "kept"))
            moved.extend([given["gates"].x.nbytes, states.initial.nbytes * config.load_initial_state])
            return
        of_states.append(given["grid"][0])
        counts = Counts(*(n >> 1 for n in given["counts"]))
        cut = {"tiles": given["num_tiles"], "segments": counts.num_segments, "segment_tiles": counts.segment_tiles}
        walked = counts.walked_segments
        share = tiles_of(cut, counts.end_segment - walked, walked) / given["num_tiles"]
        moved.extend(given[name].base.nbytes * share for name in ("qk_desc", "hv_desc"))
        moved.append(states.final.nbytes * walked / counts.num_segments)

    def carry(given):
        states = given["states"]
        moved.append(states.added.nbytes * given["added_parts"] / given["num_parts"])
        moved.append(states.starts.nbytes * (1 + given["config"].resumed / given["num_segments"]))

    monkeypatch.setattr(segment_states, "accumulate", Recorded(segment_states.accumulate, accumulate))
    monkeypatch.setattr(segment_states, "carry", Recorded(segment_states.carry, carry))
    gate = empty(16, 2048)
    made = Exponents(empty(16, 2048), empty(16, 2048), empty(16, 32))
    monkeypatch.setattr(forward, "exponents", lambda *_: (None, None, made))
    monkeypatch.setattr(backward, "empty_row_sums", row_sums)
    monkeypatch.setattr(backward, "sum_shared", sum_shared)
    monkeypatch.setattr(backward, "tile_sums", lambda *_, **__: None)
    monkeypatch.setattr(backward, "through_tiles", lambda *_: None)
    monkeypatch.setattr(backward.gates, "gate_gradients", lambda f, i, *_, overlap: (f, i))

    q, k = (empty(16 // group, 2048, d_qk, dtype=torch.bfloat16) for _ in range(2))
    v = empty(16, 2048, d_hv, dtype=torch.bfloat16)
    arguments = Arguments(q, k, v, gate, gate)
    options = KernelOptions(MLSTM_SIG, 1.0, chunk_size, return_last_state=False, gate_gradients=gate_gradients)
    h, _, saved = forward.forward(arguments, options)
    if pass_ == "fwbw":
        backward.backward(h, None, arguments, saved, options)

    steps = p.tokens * p.heads
    gates = 2 * 2 + 8  # pre-activations, exponents
    wanted, kernel = {"gate_gradients": gate_gradients, "group": group}, SIG if gate_gradients else FIXED
    if pass_ == "fwbw" and gate_gradients:
        parts = -(-d_qk // 128) * -(-d_hv // 256)
        sums = (
            4 * 4 + 4 / 64 if "C of tiles" in {kernel.name for kernel in kernels(p, **wanted)} else 2 * 4 * 4 * parts
        )  # read twice, or once by tiles
        gates += sums + 4 * 2  # pre-activations and their gradients
    assert fused.cost(shared(p, group), kernel, chunk_size).bytes == sum(moved) + steps * gates
    launched = fused.launches(shared(p, group), kernel, chunk_size)
    named = {kernel.name for kernel in kernels(p, **wanted)}
    assert [found.programs for found in launched if found.name in named] == programs
    assert [found.programs for found in launched if "of segments" in found.name] == of_states
    beside = (d_qk, d_hv, group, gate_gradients, chunk_size, batch) in BESIDE
    assert any(found.name == "C of segments, h of the first" for found in launched) == beside
    assert sum(sum(found.moved.values()) for found in launched) == pytest.approx(sum(moved) + steps * gates)


def test_row_sums_are_for_gate_gradients():
    """What they cost: q and k once more, two products with the rest of the state and one within tiles, the sums."""
    p = FIG_4.with_(d_qk=256, pass_="fwbw")  # of which dk and dv are two walks without them too
    with_sums, without = (fused.cost(p, kernel, 4096) for kernel in (SIG, FIXED))
    steps, parts = p.tokens * p.heads, 2
    assert with_sums.flops - without.flops == steps * (2 * 2 * 256 * 256 + 2 * 64 * 256 / 2)
    gates = 2 * 2 + 2 * 2
    assert with_sums.bytes - without.bytes == steps * (2 * 2 * 256 + 3 * 4 * 4 * parts + gates)
    assert fused.cost(FIG_4, FIXED, 4096) == fused.cost(FIG_4, SIG, 4096), "none in forward"


def test_the_cost_is_what_the_bench_asks_the_cost_model_for():
    for pass_ in ("fw", "fwbw"):
        problem = FIG_4.with_(pass_=pass_, chunk_size=1024)
        assert call_cost(problem, "fused", "exp") == fused.cost(problem, EXP, 1024)
        assert call_cost(problem.with_(chunk_size=None), "fused", None) == fused.cost(problem, SIG, 4096)


def test_forward_flops_are_those_of_chunks_of_one_tile_whatever_l_is():
    whole = fused.cost(FIG_4, SIG, 4096)
    assert whole.flops == call_cost(FIG_4.with_(chunk_size=64), "chunkwise", "sig").flops
    assert fused.cost(FIG_4, SIG, 1 << 20) == whole
    state_pass = 2 * 128 * 256 * FIG_4.tokens * FIG_4.heads
    for L in (1024, 256):  # but for the last segment
        assert fused.cost(FIG_4, SIG, L).flops == whole.flops + (1 - L / 4096) * state_pass


def test_heads_of_a_program_save_scores():
    """Q K^T of h, once for four."""
    p = Problem(batch=16, heads=64, seq_len=4096, d_qk=64, d_hv=64)
    product = 2 * 64 * 64 / 2  # of a step and head, causal
    alone, together = (fused.cost(shared(p, group), SIG, 4096).flops for group in (1, 64))
    assert alone - together == p.tokens * p.heads * product * (1 - 1 / 4)


def test_states_of_64_by_64_are_walked_backward_where_heads_share_nothing():
    p = Problem(batch=16, heads=64, seq_len=4096, d_qk=64, d_hv=64, pass_="fwbw")
    by_tiles = ["h", "C of tiles", "dC of tiles", "dq, dk, dv"]

    def names(problem=p, **wanted):
        return [kernel.name for kernel in kernels(problem, **wanted)]

    assert names(group=64) == names(group=4) == names(gate_gradients=False, group=64) == by_tiles
    assert names() == names(group=2) == ["h", "dq", "dk, dv"]
    assert names(gate_gradients=False) == names(gate_gradients=False, group=2) == ["h", "dq", "dk, dv"]
    assert names(p.with_(d_hv=128), group=64) == ["h", "dq", "dk, dv"]
    assert names(p.with_(pass_="fw")) == ["h"]
    launched = [launch.name for launch in fused.launches(shared(p, 64), SIG, 4096)]
    assert launched[-2:] == ["dq, dk, dv", "gate gradients"]  # a program adds up all that share q and k
    launched = [launch.name for launch in fused.launches(shared(p.with_(heads=128), 128), SIG, 4096)]
    assert launched[-3:] == ["dq of heads, added up", "dk of heads, added up", "gate gradients"]
    assert not {"sums of tiles", "through tiles"} & set(launched)


def test_heads_of_32_are_made_tile_by_tile_backward_and_two_programs_share_a_multiprocessor():
    p = Problem(batch=4, heads=128, seq_len=8192, d_qk=32, d_hv=32, pass_="fwbw")

    def names(problem=p, **wanted):
        return [kernel.name for kernel in kernels(problem, **wanted)]

    assert names() == names(gate_gradients=False) == ["h", "C of tiles", "dC of tiles", "dq, dk, dv"]
    assert names(p.with_(d_hv=48)) == names(p.with_(d_qk=48)) == ["h", "dq", "dk, dv"]
    of_last_n = plans.backward(
        Sizes(4, 128, 1, 8192, 32, 32), Device(90, 132), 8192, gate_gradients=True, of_last_n=True
    )
    assert of_last_n.by_tiles is None
    assert waves(p, SIG, 8192)["h"] == 4 * 128 / 132 / 2
    (h,) = walks(p.with_(pass_="fw"))
    assert (h.resident, h.programs, h.shape) == (2, 264, WalkShape.of(64, 64, sums=False))
    assert walks(FIG_4)[0].resident == 1


def test_segments_but_for_the_last_cost_a_second_read_of_k_and_v_and_all_cost_states():
    cut, whole = fused.cost(FIG_4, SIG, 1024), fused.cost(FIG_4, SIG, 4096)
    state = FIG_4.batch * FIG_4.heads * 128 * 256 * 4
    again = 3 / 4 * FIG_4.tokens * FIG_4.heads * (128 + 256) * 2
    assert cut.bytes - whole.bytes == again + (3 + 3 + 4 + 4) * state  # added up, read, replaced, read by the walk


@pytest.mark.parametrize(
    ("steps", "chunk_size", "count"), [(4096, 4096, 1), (4096, 1024, 4), (100, 64, 2), (4097, 2048, 3)]
)
def test_segments_are_whole_tiles(steps, chunk_size, count):
    assert Segments.of(steps, chunk_size).count == count


def test_a_wide_state_is_one_of_several_programs():
    (narrow,), (wide, *_) = walks(FIG_4), walks(WIDE)
    assert (narrow.pieces, wide.pieces) == (1, 4)


def waves(problem, kernel, chunk_size) -> dict[str, float]:
    """Return how often the programs of each walk, or of a kernel in its place, fill an H200."""
    kernels = fused.launched(fused.planned(problem, kernel, chunk_size, Device(90, 132)))
    return {walk.name: walk.items / (132 * walk.resident) for walk in kernels}


def test_waves_are_programs_over_multiprocessors():
    four_heads = waves(shared(Problem(16, 64, 4096, 64, 64, pass_="fwbw"), 64), SIG, 4096)
    by_tiles = {"dq, dk, dv": 16 * 64 * 64 / 64 / 132}
    assert four_heads == dict.fromkeys(("h", "C of tiles", "dC of tiles"), 256 / 132) | by_tiles
    assert list(waves(FIG_4.with_(pass_="fwbw"), FIXED, 4096)) == [
        "h",
        "dq",
        "dk, dv",
    ]
    assert waves(FIG_4, SIG, 4096) == {"h": 256 / 132}
    assert waves(WIDE.with_(pass_="fwbw"), SIG, 4096)["dv"] == 64 * 2 * 4 / 132


def test_the_chunk_size_is_the_one_that_the_kernels_choose():
    problem = Problem(1, 8, 65536, 128, 256, pass_="fwbw")
    device = Device(90, 132, in_steps(4.8e12))
    chosen = plans.default_chunk_size(Sizes(1, 8, 1, 65536, 128, 256), device, normalise=False, backward=True)
    assert fused.chosen_chunk_size(problem, SIG, H200) == chosen < 65536


def test_a_short_first_segment_spares_the_state_pass_two_of_them():
    """112 of 1,024 tiles, then 4 times 228, of which the last need not be gone over either."""
    long, state = FIG_4.with_(batch=1, seq_len=65536), 16 * 128 * 256 * 4
    forward, backward = fused.planned(long.with_(pass_="fwbw"), SIG, 14592)
    assert forward.state_pass
    assert backward
    assert backward.state_pass
    parts = forward.state_pass.parts
    assert (forward.cut.count, len(parts.added), parts.tiles) == (5, 3 * 2, 684)  # 96 programs beside 32
    assert backward.state_pass.parts.tiles == 912
    bytes_of = [fused.cost(long, SIG, L).bytes for L in (14592, 65536)]
    again = 684 * 64 * 16 * (128 + 256) * 2
    # Added up by parts and read, what h of the first leaves and its read, joined, read by h of the others.
    assert bytes_of[0] - bytes_of[1] == again + (2 * 6 + 2 + 5 + 4) * state
    flops_of = [fused.cost(long, SIG, L).flops for L in (14592, 65536)]
    assert flops_of[0] - flops_of[1] == 684 * 64 * 16 * 2 * 128 * 256
    launches = fused.launches(long, SIG, 14592)
    assert [launch.name for launch in launches] == ["gates", "C of segments, h of the first", "C, joined", "h"]
    assert [launch.programs for launch in launches[1:]] == [96 + 32, 16 * 128 * 256 / 1024, 128]
    assert sum(sum(launch.moved.values()) for launch in launches) == pytest.approx(bytes_of[0])
    # The walks as over one segment, whose programs are of half the rows too.
    flops, whole = (sum(sum(launch.flops.values()) for launch in fused.launches(long, SIG, L)) for L in (14592, 65536))
    assert flops - whole == pytest.approx(684 * 64 * 16 * 2 * 128 * 256)
