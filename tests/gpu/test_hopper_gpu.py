"""The fused Hopper kernels on a GPU: the TFLA kernels' cases against float64 where they apply, and repeats."""

from __future__ import annotations

import itertools
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import tfla_cases
import torch
from tfla_cases import GATES, Case, computed, draw, failures, planned_anew

from tflabench.kernels.api import chunkwise
from tflabench.kernels.backends import kernels_of
from tflabench.kernels.common.contract import Arguments, KernelOptions
from tflabench.kernels.scalar.operations import mamba2_ssd
from tflabench.kernels.scalar.plan.hopper_shapes import D_HV, D_QK
from tflabench.kernels.types import Implementation

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="needs a GPU of compute capability 9.0")]


@pytest.fixture(autouse=True)
def the_fused_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    found = kernels_of("scalar", "hopper")
    fused = SimpleNamespace(forward=found.forward, backward=found.backward)
    monkeypatch.setattr(tfla_cases, "chunkwise", fused)


def cases() -> list[Case]:
    """Every pair of head dimensions, gate, dtype and layout; one segment and several; short, ragged, long."""
    found = [
        Case(gate=gate, d_qk=d_qk, d_hv=d_hv, L=128, states=True)
        for gate in ("exp", "sig")
        for d_qk, d_hv in itertools.product(D_QK, D_HV)
    ]
    sizes: dict[str, Any] = {"d_qk": 128, "d_hv": 256}
    for gate, (L, states) in itertools.product(GATES, ((512, False), (64, True))):
        heads = 1024 if GATES[gate].per_head else 3  # df is a number a head, and slow heads have nearly all of it
        found.append(Case(gate=gate, L=L, states=states, heads=heads, **sizes))
    for gate in ("exp", "sig"):
        found += [Case(gate=gate, T=T, L=L, **sizes) for T, L in ((1, 64), (63, 64), (64, 64), (65, 64), (2100, 4096))]
        found += [Case(gate=gate, dtype=torch.float16, d_qk=d, d_hv=2 * d, L=192, states=True) for d in (64, 128, 256)]
        found += [
            Case(gate=gate, layout="bthd", L=256, states=True, **sizes),
            Case(gate=gate, batch=1, heads=1, T=5000, L=512, states=True, **sizes),
            Case(gate=gate, batch=1, T=2310, L=1024, states=True, **sizes),  # the first segment beside the state pass
            Case(gate=gate, T=1000, L=448, d_qk=256, d_hv=512),
            Case(gate=gate, gates="closing", T=4096, L=1216, **sizes),
            Case(gate=gate, gates="extreme", T=515, L=128, **sizes),
            Case(gate=gate, gates="extreme", T=515, L=128, d_qk=256, d_hv=512),
            Case(gate=gate, gates="slow", T=2100, L=4096, d_qk=256, d_hv=512, states=True),
            Case(gate=gate, gates="closing", T=4096, L=1024, **sizes),
            Case(gate=gate, gates="closing", T=2100, L=4096, d_qk=256, d_hv=512),
            Case(gate=gate, gates="slow", T=2100, L=1024, d_qk=256, d_hv=256, states=True),
            Case(gate=gate, gates="documents", T=515, L=1024, **sizes),
            Case(gate=gate, gates="documents", T=4096, L=1024, batch=1, heads=2, d_qk=256, d_hv=512, states=True),
        ]
    found += [  # heads that do not fill their blocks
        Case(gate=gate, d_qk=d_qk, d_hv=d_hv, T=T, L=L, states=T != 2100)
        for gate in ("exp", "sig")
        for d_qk, d_hv in ((32, 32), (48, 80), (96, 192), (160, 320), (224, 272), (32, 512))
        for T, L in ((1000, 256), (2100, 4096))
    ]
    found += [
        Case(gate="simple_gla", d_qk=32, d_hv=32, heads=8, sharing=4, T=1000, L=L, states=True) for L in (128, 1024)
    ]
    found += [  # states of tiles that do not fill their blocks; dC lies where dv goes
        Case(gate=gate, d_qk=d_qk, d_hv=d_hv, T=1024, L=512, heads=4, sharing=sharing, layout=layout, states=True)
        for gate, d_qk, d_hv, sharing in (("sig", 32, 32, 1), ("exp", 32, 32, 1), ("mamba2", 48, 64, 4))
        for layout in ("bhtd", "bthd")
    ]
    found += [Case(gate="exp", d_qk=80, d_hv=96, dtype=torch.float16, layout="bthd", L=128, states=True)]
    together: dict[str, Any] = {"heads": 8, "d_qk": 64, "d_hv": 64}  # several heads a program
    for gate, sharing in itertools.product(("exp", "sig", "simple_gla"), (4, 8)):
        found += [
            Case(gate=gate, sharing=sharing, T=T, L=L, states=states, **together)
            for T, L, states in ((1, 64, False), (65, 512, True), (1000, 512, False), (1000, 128, True))
        ]
        found += [
            Case(gate=gate, sharing=sharing, L=128, dtype=torch.float16, layout="bthd", states=True, **together),
            Case(gate=gate, sharing=sharing, L=1024, T=515, batch=20, gates="documents", **together),
        ]
    return found


@pytest.mark.parametrize("case", cases(), ids=str)
def test_at_most_twice_as_wrong_as_plain_pytorch(case: Case) -> None:
    assert failures(case) == []


@pytest.mark.parametrize("chunk_size", [8192, 65536])
def test_more_elements_than_an_int32_counts(chunk_size: int) -> None:
    assert max(tfla_cases.errors_of_the_last_of_a_large_batch(chunk_size)) < 1e-2


@pytest.mark.parametrize("heads", [1, 8, 32])
@pytest.mark.parametrize("T", [300, 4096])
def test_dq_and_dk_of_heads_are_added_up_in_a_program(heads: int, T: int, monkeypatch: pytest.MonkeyPatch) -> None:
    planned_anew(monkeypatch, "heads_added_up", lambda *_: heads)
    case = Case(gate="mamba2_softplus", T=T, heads=64, sharing=32, d_qk=64, d_hv=64, L=1024, states=True)
    assert failures(case) == []


@pytest.mark.parametrize("gate", ["exp", "simple_gla", "mamba2"])
@pytest.mark.parametrize(("d_qk", "d_hv"), [(64, 64), (128, 128), (128, 256), (256, 512)])
@pytest.mark.parametrize(
    ("T", "L", "dtype"), [(1, 64, torch.bfloat16), (1000, 256, torch.bfloat16), (515, 1024, torch.float16)]
)
def test_without_gate_gradients(
    gate: str, d_qk: int, d_hv: int, T: int, L: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """dk and dv then come from one walk where it takes the head dimensions."""
    backward = kernels_of("scalar", "hopper").backward

    def without(dh: Any, d_last: Any, arguments: Arguments, saved: Any, options: KernelOptions) -> Any:
        return backward(dh, d_last, arguments, saved, options._replace(gate_gradients=False))

    monkeypatch.setattr(tfla_cases.chunkwise, "backward", without)
    case = Case(gate=gate, d_qk=d_qk, d_hv=d_hv, T=T, L=L, dtype=dtype, states=True)
    assert failures(case, absent=frozenset({"df", "di"})) == []


@pytest.mark.parametrize("gate", ["exp", "sig"])
@pytest.mark.parametrize(("d_qk", "d_hv"), [(64, 64), (128, 256), (192, 128), (256, 512)])
@pytest.mark.parametrize(("L", "own", "gates"), [(320, 512, "normal"), (320, 1024, "slow"), (192, 448, "extreme")])
def test_forward_cut_otherwise_than_backward(
    gate: str, d_qk: int, d_hv: int, L: int, own: int, gates: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As "auto" cuts long sequences: h writes down the states that segments of backward start from."""
    made = kernels_of("scalar", "hopper").forward

    def cut_freely(arguments: Arguments, options: KernelOptions) -> Any:
        return made(arguments, options._replace(cut_freely=True))

    monkeypatch.setattr(tfla_cases.chunkwise, "forward", cut_freely)
    chosen = SimpleNamespace(chunk_size=lambda _T: own)
    planned_anew(monkeypatch, "hopper_segments.chosen_for_forward", lambda _shape: chosen)
    assert failures(Case(gate=gate, d_qk=d_qk, d_hv=d_hv, T=1000, L=L, gates=gates, states=L == 320)) == []


@pytest.mark.parametrize("gate", ["exp", "sig"])
@pytest.mark.parametrize(
    ("d_qk", "d_hv", "L", "sharing"),
    [
        *((128, 256, L, 1) for L in (1024, 256, 448)),
        *((256, 512, L, 1) for L in (1024, 448)),
        *((64, 64, L, sharing) for L, sharing in ((128, 1), (256, 4))),
    ],
)
def test_random_inputs_give_the_same_bits_twice(gate: str, d_qk: int, d_hv: int, L: int, sharing: int) -> None:
    case = Case(gate=gate, heads=3 * sharing, sharing=sharing, d_qk=d_qk, d_hv=d_hv, L=L, T=1000, states=True)
    for seed in range(125):
        inputs, grads = draw(case, seed)
        one, two = computed(case, inputs, grads), computed(case, inputs, grads)
        assert all(torch.equal(one[name], two[name]) for name in one), seed


@pytest.mark.parametrize(
    ("groups", "d_qk", "d_hv", "chunk_size"), [(1, 64, 64, 64), (2, 64, 64, 2048), (4, 128, 512, 512)]
)
def test_mamba2_with_shared_heads_and_a_skip_connection(groups: int, d_qk: int, d_hv: int, chunk_size: int) -> None:
    """What the gates' cases lack: every gradient by name, against float64."""
    torch.manual_seed(0)
    B, H, T = 2, 8, 1000

    def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(shape, device="cuda").to(dtype).requires_grad_()

    wide: dict[str, Any] = {"dtype": torch.float32}
    x = {"x": normal(B, H, T, d_hv), "dt": normal(B, H, T, **wide), "A": normal(H, **wide)}
    x |= {"B": normal(B, groups, T, d_qk), "C": normal(B, groups, T, d_qk)}
    x |= {"D": normal(H, **wide), "dt_bias": normal(H, **wide)}
    with torch.no_grad():
        x["A"].copy_(-x["A"].abs())
    dy = torch.randn(B, H, T, d_hv, device="cuda", dtype=torch.bfloat16)

    def outputs(x: dict[str, Any], implementation: Implementation) -> list[torch.Tensor]:
        y = mamba2_ssd(**x, dt_softplus=True, implementation=implementation, chunk_size=chunk_size)
        return [y, *torch.autograd.grad(y, list(x.values()), dy.to(y.dtype))]

    exact = {name: y.detach().double().requires_grad_() for name, y in x.items()}
    wanted, plain, found = outputs(exact, "reference"), outputs(x, "reference"), outputs(x, "hopper")
    for name, y, y_plain, y_exact in zip(("y", *x), found, plain, wanted, strict=True):
        ours, theirs = ((z.double() - y_exact).norm() / y_exact.norm() for z in (y, y_plain))
        assert ours <= 2 * theirs + 2e-3, name


@pytest.mark.parametrize("gate", ["exp", "sig"])
@pytest.mark.parametrize(
    ("T", "chunk_size", "d_qk", "d_hv"),
    [
        (1000, 1024, 128, 256),
        (2048, 512, 128, 256),
        (1000, 448, 128, 256),
        (1000, 512, 256, 512),
        (1000, 448, 256, 512),
    ],
)
def test_a_cuda_graph_of_overlapping_kernels(gate: str, T: int, chunk_size: int, d_qk: int, d_hv: int) -> None:
    """Forward and backward, of one segment and of several, replayed on other inputs than it was captured with."""
    heads = (2, 8, T)

    def drawn(seed: int) -> list[torch.Tensor]:
        generator = torch.Generator("cuda").manual_seed(seed)
        draw_one = partial(torch.randn, device="cuda", generator=generator)
        q, k, v = (draw_one(*heads, d).bfloat16() for d in (d_qk, d_qk, d_hv))
        return [q, k, v, draw_one(*heads) + 4, draw_one(*heads)]

    def both(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        h = chunkwise(*inputs, gate=GATES[gate], chunk_size=chunk_size, implementation="hopper")
        return [h, *torch.autograd.grad(h.float().square().sum(), inputs)]

    static = [x.requires_grad_() for x in drawn(0)]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        both(static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = both(static)
    for seed in range(1, 6):
        given = drawn(seed)
        with torch.no_grad():
            for x, new in zip(static, given, strict=True):
                x.copy_(new)
        graph.replay()
        wanted = both([x.requires_grad_() for x in given])
        torch.cuda.synchronize()
        for x, y in zip(found, wanted, strict=True):
            assert x.equal(y)
