"""What the kernels launch is the plan, which says it in plain numbers."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
from repository import ROOT

from tflabench.kernels.common.sizes import Device, Sizes
from tflabench.kernels.delta import hopper_plan as delta_plan
from tflabench.kernels.delta import plan as delta_tiles
from tflabench.kernels.gla.plan import GlaPlan
from tflabench.kernels.scalar.plan import hopper as hopper_plan
from tflabench.kernels.scalar.plan import tfla as tfla_plan
from tflabench.kernels.scalar.plan.hopper import Kernel, StatePass, TileGradients, Walk

AMPERE, HOPPER, BLACKWELL = Device(80, 108), Device(90, 132), Device(100, 148)


def test_a_plan_needs_neither_torch_nor_triton():
    code = """
import sys
from tflabench.kernels.common.sizes import Device, Sizes
from tflabench.kernels.scalar.plan.tfla import planned
print(planned(Sizes(1, 8, 1, 4096, 128, 256), 256, 2, Device(90, 132)).h.programs)
print([name for name in ("torch", "triton", "numpy") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["512", "[]"]


class Launched:
    """Takes the place of `enqueue`, and keeps kernels by name with their programs and options."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *modules: Any) -> None:
        self.launches: list[tuple[str, int, dict[str, Any]]] = []
        for module in modules:
            monkeypatch.setattr(module, "enqueue", self)

    def __call__(self, kernel: Any, programs: int, *args: Any, **options: Any) -> None:
        for x in args:
            if "config" in getattr(x, "_fields", ()):
                options["config"] = x.config.value
        self.launches.append((kernel.__name__, programs, options))


def divided(sizes: Sizes, device: Device) -> list[object]:
    """Return all that the bits of a result depend on, of the plans of all families."""
    hopper, delta, gla = (
        hopper_plan.forward(sizes, device, 2048, normalise=False, end=True, cut_freely=True),
        delta_plan.planned(sizes, device, 1024, 1, backward=True),
        GlaPlan.of(sizes, 256, "bfloat16", device.multiprocessors),
    )
    back = hopper_plan.backward(sizes, device, 2048, gate_gradients=True, end=True)
    of_exp = hopper_plan.forward(sizes, device, 512, normalise=True)
    triton = tfla_plan.planned(sizes, 256, 2, device)
    walks = [walk for walk in (hopper.first, hopper.h, *back.walks, of_exp.first, of_exp.h) if walk]
    passes = [states.parts for states in (hopper.state_pass, back.state_pass, of_exp.state_pass) if states]
    tiles = back.by_tiles and back.by_tiles.gradients.shape
    added_up = [getattr(triton, name).members for name in ("h", "dq", "dk", "dv")]
    return [
        *(hopper.cut, hopper.h.kept, of_exp.cut, [(walk.shape, walk.segments) for walk in walks], passes, tiles),
        *(delta.cut, delta.queries_keys.members, delta_tiles.WalkTiles.of(sizes, 256, 2, 1, device)),
        *(gla.segments(sizes.rows), triton.forward_states, triton.backward_states, added_up),
    ]


@pytest.mark.parametrize("heads", [1, 6, 40])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("dims", [(64, 64), (128, 256), (256, 512)])
@pytest.mark.parametrize("steps", [3000, 65536])
def test_a_row_of_a_deterministic_layout_is_divided_as_alone(heads, group, dims, steps):
    group = 1 if heads == 1 else group
    alone, *batches = (
        divided(Sizes(batch, heads, group, steps, *dims), HOPPER.times(batch)) for batch in (1, 3, 7, 16)
    )
    assert batches == [alone] * 3


# --- The paper's kernels


@pytest.mark.parametrize("device", [AMPERE, HOPPER, BLACKWELL], ids=lambda device: f"sm_{device.architecture}")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    ("sizes", "chunk_size"),
    [
        (Sizes(1, 2, 1, 4096, 128, 256), 256),  # states in segments
        (Sizes(16, 16, 1, 1000, 64, 128), 64),
        (Sizes(16, 64, 64, 4096, 64, 64), 128),  # programs add up heads
        (Sizes(2, 3, 1, 100, 48, 80), 4096),
    ],
    ids=str,
)
def test_the_papers_kernels_are_launched_as_planned(sizes, chunk_size, dtype, device, monkeypatch):
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from tflabench.kernels.common.contract import Arguments, KernelOptions
    from tflabench.kernels.scalar import gates
    from tflabench.kernels.scalar.tfla import chunkwise, outputs, states
    from tflabench.kernels.types import MLSTM_SIG

    launched = Launched(monkeypatch, gates, outputs, states)
    monkeypatch.setattr(chunkwise.device, "figures", lambda _: device)
    B, H, group, T, d_qk, d_hv = sizes

    def empty(*shape: int) -> Any:
        return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")

    q, k, v = empty(B, H // group, T, d_qk), empty(B, H // group, T, d_qk), empty(B, H, T, d_hv)
    f, i = empty(B, H, T), empty(B, H, T)
    arguments, options = Arguments(q, k, v, f, i), KernelOptions(MLSTM_SIG, 1.0, chunk_size)
    h, _, saved = chunkwise.forward(arguments, options)
    chunkwise.backward(h, None, arguments, saved, options)

    plan = tfla_plan.planned(sizes, chunk_size, q.dtype.itemsize, device)
    of_kernel = {name: [launch for launch in launched.launches if launch[0] == name] for name in (
        "chunk_states", "join_segments", "parallel_outputs"
    )}  # fmt: skip
    planned = [plan.h, plan.dq, plan.dk, plan.dv]
    assert [programs for _, programs, _ in of_kernel["parallel_outputs"]] == [each.programs for each in planned]
    for (_, _, options), each in zip(of_kernel["parallel_outputs"], planned, strict=True):
        config, tiles = options["config"], each.tiles
        assert (config.rows, config.cols, config.inner, config.outer) == (
            tiles.rows, tiles.cols, tiles.inner, tiles.outer,
        )  # fmt: skip
        assert (config.members, config.tma) == (each.members, plan.tma)
        assert (options["num_warps"], options["num_stages"]) == (tiles.warps, tiles.stages)
    walks = [plan.forward_states, plan.forward_states, plan.backward_states]
    passes = [walk for walk in walks for _ in range(1 if walk.segments == 1 else 2)]
    assert [programs for _, programs, _ in of_kernel["chunk_states"]] == [
        sizes.rows * walk.blocks * walk.segments for walk in passes
    ]
    assert len(of_kernel["join_segments"]) == sum(walk.segments > 1 for walk in walks)


# --- The fused kernels

KERNELS = {"h": "walk_forward", "dv": "walk_backward_dv", "dk, dv": "pair", "dq, dk, dv": "gradients"}


def name_of(planned: Kernel) -> str:
    if isinstance(planned, StatePass):
        return "accumulate"
    if planned.name in ("dq", "dk"):
        assert isinstance(planned, Walk)
        return "walk_backward_dqk" + "_with_sums" * planned.sums
    if isinstance(planned, Walk) and planned.together > 1:
        return "walk_heads"
    return KERNELS[planned.name] + "_normalised" * (isinstance(planned, Walk) and planned.normalise)


@pytest.mark.parametrize("device", [HOPPER, Device(90, 114), Device(90, 3)], ids=lambda device: device.multiprocessors)
@pytest.mark.parametrize("gate", ["sig", "exp"])
@pytest.mark.parametrize(
    ("sizes", "chunk_size"),
    [
        (Sizes(16, 16, 1, 4096, 128, 256), 4096),  # dk and dv in one walk
        (Sizes(1, 16, 1, 65536, 128, 256), 8192),  # forward cuts otherwise, and h of the first is beside the state pass
        (Sizes(1, 2, 1, 8192, 256, 512), 1024),  # half the rows a program, parts of segments, dq of two column pieces
        (Sizes(2, 64, 64, 4096, 64, 64), 1024),  # tile by tile, heads that share a program
        (Sizes(1, 3, 1, 1000, 192, 64), 320),
    ],
    ids=str,
)
def test_the_fused_kernels_are_launched_as_planned(sizes, chunk_size, gate, device, monkeypatch):
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton.experimental.gluon")
    from tflabench.kernels.common.contract import Arguments, KernelOptions
    from tflabench.kernels.scalar import gates
    from tflabench.kernels.scalar.hopper import (
        backward,
        backward_dkdv,
        backward_dqk,
        backward_dv,
        crossings,
        forward,
        packed_heads,
        segment_states,
        tile_gradients,
    )
    from tflabench.kernels.types import MLSTM_EXP, MLSTM_SIG

    kernels = (forward, packed_heads, segment_states, backward_dqk, backward_dkdv, backward_dv, tile_gradients)
    others = Launched(monkeypatch, gates, crossings)
    launched = Launched(monkeypatch, *kernels)
    for module in (forward, backward):
        monkeypatch.setattr(module, "figures_of", lambda *_: device)
    B, H, group, T, d_qk, d_hv = sizes

    def empty(*shape: int) -> Any:
        return torch.empty(shape, dtype=torch.bfloat16, device="meta")

    q, k, v = empty(B, H // group, T, d_qk), empty(B, H // group, T, d_qk), empty(B, H, T, d_hv)
    f, i = empty(B, H, T), empty(B, H, T)
    of_gate = MLSTM_EXP if gate == "exp" else MLSTM_SIG
    arguments = Arguments(q, k, v, f, i)
    options = KernelOptions(of_gate, 1.0, chunk_size, return_last_state=False, cut_freely=True)
    h, _, saved = forward.forward(arguments, options)
    backward.backward(h, None, arguments, saved, options)
    assert others.launches

    of_forward = hopper_plan.forward(sizes, device, chunk_size, normalise=gate == "exp", cut_freely=True)
    of_backward = hopper_plan.backward(sizes, device, chunk_size, gate_gradients=True)
    planned: list[Kernel] = [
        each for each in (of_forward.state_pass, of_forward.first, of_forward.h, of_backward.state_pass) if each
    ]
    for kernel in of_backward.kernels:
        planned += [kernel]
    of_states = [launch for launch in launched.launches if launch[0] == "carry"]
    found = [launch for launch in launched.launches if launch[0] != "carry"]
    for (name, programs, options), each in zip(found, planned, strict=True):
        assert (name, programs) == (name_of(each), each.items if isinstance(each, StatePass) else each.programs)
        config = options["config"]
        assert {key: getattr(config, key) for key in vars(each.shape)} == vars(each.shape)
        if isinstance(each, Walk):
            assert getattr(config, "pieces", 1) == each.pieces
        if isinstance(each, TileGradients):
            assert config.num_heads == each.together
    passes = [each for each in (of_forward.state_pass, of_backward.state_pass) if each]
    carried = [(each, 1 + (gate == "exp" and not each.reverse)) for each in passes]  # C and n
    assert [programs for _, programs, _ in of_states] == [
        each.carry(elements)[1] for each, count in carried for elements in (d_qk * d_hv, d_qk)[:count]
    ]
    assert [tuple(x.shape) for x in saved] == hopper_plan.saved(sizes, chunk_size, stabilised=gate == "exp")


@pytest.mark.parametrize(
    ("layout", "d", "heads", "overlap"),
    [("bhtd", 32, 8, True), ("bthd", 32, 8, False), ("bthd", 32, 1, True), ("bthd", 64, 8, True)],
)
@pytest.mark.parametrize("gate", ["sig", "exp"])
def test_heads_that_share_lines_of_the_l2_start_together(layout, d, heads, overlap, gate, monkeypatch):
    """In (B, T, H, d) two heads of 32 share a line of 128 bytes; their walk follows no kernel that still runs."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton.experimental.gluon")
    from tflabench.kernels.common.contract import Arguments, KernelOptions
    from tflabench.kernels.scalar import gates
    from tflabench.kernels.scalar.hopper import forward
    from tflabench.kernels.types import MLSTM_EXP, MLSTM_SIG

    Launched(monkeypatch, gates)
    launched = Launched(monkeypatch, forward)
    monkeypatch.setattr(forward, "figures_of", lambda *_: HOPPER)
    x = torch.empty((2, heads, 1024, d), dtype=torch.bfloat16, device="meta")
    if layout == "bthd":
        x = torch.empty((2, 1024, heads, d), dtype=torch.bfloat16, device="meta").transpose(1, 2)
    f = torch.empty((2, heads, 1024), dtype=torch.bfloat16, device="meta")
    of_gate = MLSTM_EXP if gate == "exp" else MLSTM_SIG
    forward.forward(Arguments(x, x, x, f, f), KernelOptions(of_gate, 1.0, 1024, return_last_state=False))
    (launch,) = launched.launches
    assert launch[2]["launch_pdl"] is overlap


def test_no_kernel_knows_a_gpu_by_its_name():
    """What is chosen follows from figures of a device."""
    names = re.compile(r"\b(V100|A100|L40S?|H100|H200|G?H200|G?B200|RTX ?\d+)\b")
    files = list((ROOT / "kernels").rglob("*.py"))
    assert len(files) > 30
    assert [file for file in files if names.search(file.read_text())] == []
