"""The TFLA kernels in Triton's interpreter against float64, every output and gradient by name, at small shapes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tfla_cases import DEVICE, GATES, Case, check_underflow, computed, draw, errors, expected, failures
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from tflabench.kernels.common import device
from tflabench.kernels.common.contract import Arguments, KernelOptions
from tflabench.kernels.common.sizes import Device
from tflabench.kernels.scalar.gates import GradientSums, RowSums, gate_gradients, log_gates, tile_gates
from tflabench.kernels.scalar.plan import tfla as plans
from tflabench.kernels.scalar.plan.tfla import TileConfig
from tflabench.kernels.scalar.tfla import chunkwise
from tflabench.kernels.state import State
from tflabench.kernels.types import MLSTM_EXP, MLSTM_SIG

SMALL = Case(T=43, batch=1, heads=2, d_qk=16, d_hv=32, L=16, dtype=torch.float32)


def small(**changes: object) -> Case:
    return Case(**{**SMALL.__dict__, **changes})  # type: ignore[arg-type]


CASES = [
    *(small(gate=gate, states=True) for gate in GATES),
    small(gate="exp", layout="bthd"),
    *(
        small(gate=gate, heads=4, sharing=sharing, states=True)
        for gate, sharing in (("mamba2_softplus", 4), ("exp", 2))
    ),
    *(small(gate=gate, T=T, L=L) for gate, T, L in (("exp", 1, 16), ("sig", 5, 64), ("exp", 50, 48), ("sig", 70, 64))),
    *(
        small(gate=gate, d_qk=d_qk, d_hv=d_hv)
        for gate, d_qk, d_hv in (("exp", 48, 16), ("sig", 16, 80), ("exp", 96, 96))
    ),
    *(small(gate=gate, gates=gates) for gate, gates in (("exp", "extreme"), ("exp", "documents"), ("sig", "extreme"))),
    small(gate="exp", dtype=torch.float16, L=32, T=70, states=True),
    small(gate="sig", dtype=torch.float16, L=32, T=70),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward_and_every_gradient(case: Case) -> None:
    assert failures(case) == []


@pytest.mark.parametrize("gate", ["exp", "sig"])
def test_values_are_right_and_not_only_as_wrong_as_plain_pytorch(gate: str) -> None:
    found = errors(small(gate=gate, states=True))
    assert {"h", "C", "dq", "dk", "dv", "df", "di", "dC"} <= found.keys()
    for name, (ours, _) in found.items():
        assert ours < 1e-5, name


def test_nothing_is_nan_where_a_denominator_underflows() -> None:
    check_underflow(small())


def test_a_sequence_in_segments_is_the_sequence() -> None:
    """Where programs are few the state walk is cut into segments: forward and backward, with states in and out."""
    case = small(gate="exp", T=90, states=True)
    inputs, grads = draw(case)
    whole = computed(case, inputs, grads)
    default = TileConfig.for_shape(case.d_qk, case.d_hv, case.dtype, case.L, 90)
    for programs in (1, 10_000):
        cut = TileConfig(**{**default.__dict__, "programs": programs})
        for name, x in computed(case, inputs, grads, config=cut).items():
            torch.testing.assert_close(x, whole[name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("members", [1, 2, 4])
def test_heads_added_up_in_a_program_are_the_sum(members: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """dQ and dK of four heads that share q and k, with all programs wanted, half and a quarter of them."""
    seen = []
    monkeypatch.setattr(plans, "heads_added_up", lambda sharing, *_: seen.append(sharing) or min(members, sharing))
    monkeypatch.setattr(plans, "planned", plans.planned.__wrapped__)  # not remembered
    assert failures(small(gate="mamba2_softplus", T=40, heads=4, sharing=4, states=True)) == []
    assert sorted(seen) == [1] * 4 + [4] * 4  # forward and backward plan four launches each


def test_programs_add_up_as_many_heads_as_leave_enough_programs() -> None:
    assert plans.heads_added_up(1, 100, 10) == 1
    assert plans.heads_added_up(64, 64 * 1024, 2112) == 16
    assert plans.heads_added_up(6, 60, 10) == 6
    assert plans.heads_added_up(6, 60, 25) == 2
    assert plans.heads_added_up(4, 4, 2112) == 1


def test_descriptors_made_in_the_kernel_read_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs before compute capability 9.0, on strided inputs."""
    if DEVICE != "cpu":
        pytest.skip("stands in for an A100 on a CPU: a GPU has its own figures")
    monkeypatch.setattr(device, "figures", lambda _: Device(80, 108))
    assert failures(small(gate="exp", layout="bthd", states=True, d_hv=48)) == []


def test_tensors_may_begin_anywhere() -> None:
    """The copy engine reads from multiples of 16 bytes on; a contiguous view of a larger tensor may begin elsewhere."""

    def moved(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)

    case = small(states=True)
    inputs, grads = draw(case)
    default = TileConfig.for_shape(case.d_qk, case.d_hv, case.dtype, case.L, 90)
    config = TileConfig(
        **{**default.__dict__, "programs": 1}
    )  # one walk over all states, which begins with the one given
    wanted = computed(case, inputs, grads, config)
    shifted = {name: None if x is None else moved(x) for name, x in inputs.items()}
    assert shifted["q"].data_ptr() % 16 != 0  # type: ignore[union-attr]
    for name, x in computed(case, shifted, {name: moved(x) for name, x in grads.items()}, config).items():
        assert torch.equal(x, wanted[name]), name


def test_nothing_leaks_across_a_document_boundary() -> None:
    """What follows a forget gate of -inf depends on nothing before it, bit for bit; nor do its gradients."""
    case, cut = small(gate="exp", T=40), 21
    inputs, grads = draw(case)
    inputs["f"][:, :, cut] = float("-inf")  # type: ignore[index]
    one = computed(case, inputs, grads)
    changed = {name: None if x is None else x.clone() for name, x in inputs.items()}
    for name in ("q", "k", "v"):
        changed[name][:, :, :cut] = 100 * changed[name][:, :, :cut].flip(2)  # type: ignore[index]
    other = computed(case, changed, grads)
    for name in ("h", "dq", "dk", "dv", "df", "di"):
        assert torch.equal(one[name][:, :, cut:], other[name][:, :, cut:]), name
        assert not torch.equal(one[name][:, :, :cut], other[name][:, :, :cut]), name
    assert not one["df"][:, :, cut].any()


@pytest.mark.parametrize("T", [1, 70, 1500])
def test_the_stabiliser_scan_is_the_recurrence(T: int) -> None:
    """m_t = max(log f_t + m_{t-1}, log i_t) over several blocks, and both stabilised gates at most 0."""
    torch.manual_seed(0)
    f, i = torch.randn(1, 2, T, device=DEVICE) * 4, torch.randn(1, 2, T, device=DEVICE) * 10
    m_0 = torch.randn(1, 2, device=DEVICE)
    gates = log_gates(f, i, MLSTM_EXP, (1, 2, T), m_0)
    m = m_0.double()
    for t in range(T):
        m = torch.maximum(torch.nn.functional.logsigmoid(f[..., t].double()) + m, i[..., t].double())
        assert gates.m is not None
        torch.testing.assert_close(gates.m[..., t].double(), m, rtol=1e-5, atol=1e-5)
    assert gates.log_f.max() <= 0
    assert gates.log_i.max() <= 0


def test_tile_sums_add_only_what_is_not_positive() -> None:
    torch.manual_seed(0)
    f, i = torch.randn(1, 1, 50, device=DEVICE), torch.randn(1, 1, 50, device=DEVICE)
    f[..., 20] = float("-inf")
    gates = log_gates(f, i, MLSTM_SIG, (1, 1, 50), None)
    tiles = tile_gates(gates, 16)
    log_f = torch.nn.functional.pad(gates.log_f, (0, 14)).view(4, 16)
    torch.testing.assert_close(tiles.prefix.view(4, 16), log_f.cumsum(-1))
    torch.testing.assert_close(tiles.g.view(4), log_f.sum(-1))
    after = torch.stack([log_f[:, j + 1 :].sum(-1) for j in range(16)], -1)
    log_i = torch.nn.functional.pad(gates.log_i, (0, 14), value=float("-inf")).view(4, 16)
    torch.testing.assert_close(tiles.a.view(4, 16), after + log_i)
    assert torch.isfinite(tiles.b).all()
    assert tiles.segment.view(4, 16)[1].tolist() == [0] * 4 + [1] * 12


def test_sums_between_two_steps_of_a_tile_do_not_lose_what_the_sum_from_its_start_would() -> None:
    torch.manual_seed(0)
    f, i = torch.randn(2, 1, 1, 128, device=DEVICE)
    gates = log_gates(f - 2.0, i, MLSTM_SIG, (1, 1, 128), None)
    tiles = tile_gates(gates, 128)
    b, rest, to = tiles.b.view(-1), tiles.b_rest.view(-1), tiles.log_i_rest.view(-1)
    log_f, log_i = gates.log_f.view(-1).double().cumsum(0), gates.log_i.view(-1).double()
    for reach in (1, 2, 8):  # some 2 to 16 apart, in sums of up to 280: float32 is 1.5e-5 coarse there
        found = (b[reach:] - b[:-reach]) + rest[reach:] + to[:-reach]
        exact = log_f[reach:] - log_f[:-reach] + log_i[:-reach]
        torch.testing.assert_close(found.double(), exact, rtol=0.0, atol=2e-6)


def pair_sums(pairs: torch.Tensor, L: int) -> tuple[RowSums, RowSums, torch.Tensor]:
    """Row sums q.dq and k.dk and what passes whole chunks, of what step j gives step i >= j, (T, T)."""
    T = pairs.shape[0]
    chunk = torch.arange(T) // L
    within = pairs * (chunk[:, None] == chunk[None, :])
    around = [pairs[(c + 1) * L :, : c * L].sum() for c in range(-(-T // L))]
    qdq, kdk = (RowSums(*(x.sum(axis).view(1, 1, 1, T).float().to(DEVICE) for x in (pairs, within))) for axis in (1, 0))
    return qdq, kdk, torch.stack(around).view(1, 1, -1).float().to(DEVICE)


@pytest.mark.parametrize("L", [48, 512, 1200, 2048])
def test_gate_gradients_are_sums_over_pairs_on_both_sides_of_a_step(L: int) -> None:
    torch.manual_seed(0)
    T = 1300
    f, i = torch.randn(1, 1, T, device=DEVICE), torch.randn(1, 1, T, device=DEVICE)
    pairs = torch.randn(T, T, dtype=torch.float64).tril()
    gates = log_gates(f, i, MLSTM_SIG, (1, 1, T), None)
    qdq, kdk, through = pair_sums(pairs, L)
    sums = GradientSums(qdq, kdk, through, L)
    df, di = gate_gradients(f, i, MLSTM_SIG, gates.log_f, sums)
    assert gate_gradients(f, i, MLSTM_SIG, None, sums)[0].equal(df), "from the pre-activations"
    wanted = torch.stack([pairs[t:, :t].sum() for t in range(T)])
    error = df[0, 0].cpu() - wanted * torch.sigmoid(-f[0, 0].cpu())
    assert error.norm() < 1e-5 * wanted.norm()
    assert di is not None
    torch.testing.assert_close(di, kdk.every[0] * torch.sigmoid(-i))


@pytest.mark.parametrize("L", [64, 1024])
def test_a_gate_that_nearly_closes_has_a_gradient_as_exact_as_any_other(L: int) -> None:
    """Row sums are off by 1e-3 of themselves, but for pairs of a chunk, which kernels round once for both sums."""
    torch.manual_seed(0)
    T, closing = 1000, 100
    f, i = torch.randn(1, 1, T, device=DEVICE), torch.randn(1, 1, T, device=DEVICE)
    pairs = torch.randn(T, T, dtype=torch.float64).tril()
    pairs[closing:, :closing] *= 1e-3
    chunk = torch.arange(T) // L
    within = chunk[:, None] == chunk[None, :]
    rounded = pairs * (1 + 1e-3 * torch.randn(T, T))
    again = torch.where(within, rounded, pairs * (1 + 1e-3 * torch.randn(T, T)))
    qdq, _, through = pair_sums(rounded, L)
    _, kdk, _ = pair_sums(again, L)
    log_f = log_gates(f, i, MLSTM_SIG, (1, 1, T), None).log_f
    df, _ = gate_gradients(f, i, MLSTM_SIG, log_f, GradientSums(qdq, kdk, through, L))
    wanted = pairs[closing:, :closing].sum() * torch.sigmoid(-f[0, 0, closing].cpu())
    found = df[0, 0, closing].cpu()
    assert abs(found - wanted) < 0.05 * abs(wanted)


def test_pairs_of_steps_weigh_the_same_in_dq_and_dk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what cancels in the gradient of a gate that nearly closes is noise. Products come out the same from either
    side on a GPU; here they are made to.
    """
    if not torch.cuda.is_available():
        monkeypatch.setattr(InterpreterBuilder, "create_dot", exact_dot)
    case = small(gate="sig", dtype=torch.float16, heads=1, d_qk=64, d_hv=64, T=2048, L=1024, gates="closing")
    tiles = TileConfig.for_shape(case.d_qk, case.d_hv, case.dtype, case.L, 90)
    tilings = {name: replace(getattr(tiles, name), rows=128, cols=64) for name in ("h", "dq", "dk", "dv")}
    inputs, grads = draw(case)
    found = computed(case, inputs, grads, replace(tiles, **tilings))["df"].double()
    exact, plain = (expected(case, inputs, grads, dtype)["df"].double() for dtype in (torch.float64, case.dtype))
    assert (found - exact).norm() < 2 * (plain - exact).norm()


def exact_dot(_builder: InterpreterBuilder, a: Any, b: Any, d: Any, *_: Any) -> TensorHandle:
    sums = a.data.astype(np.float64) @ b.data.astype(np.float64) + d.data
    return TensorHandle(sums.astype(d.data.dtype), d.dtype.scalar)


def test_what_cannot_run_says_why() -> None:
    q, v = torch.zeros(1, 1, 8, 16, device=DEVICE), torch.zeros(1, 1, 8, 24, device=DEVICE)

    def reason(q: torch.Tensor, v: torch.Tensor, L: int, levels: int = 2, config: object = None) -> str | None:
        options: dict[str, Any] = {"gate": MLSTM_SIG, "chunk_size": L, "config": config, "levels": levels}
        return chunkwise.refuses(q, v, **options)

    assert "d_hv" in str(reason(q, v, 64))
    assert "float64" in str(reason(q.double(), q.double(), 64))
    if DEVICE == "cpu":
        assert "bfloat16" in str(reason(q.bfloat16(), q.bfloat16(), 64))
    assert "multiple of 16" in str(reason(q, q, 24))
    assert "one tile" in str(reason(q, q, 256, levels=1))
    assert "TileConfig" in str(reason(q, q, 64, config=64))
    assert reason(q, q, 256) is None
    assert reason(q, q, 64, levels=1) is None


def test_saved_tensors_are_as_announced() -> None:
    case = small(gate="exp")
    inputs, _ = draw(case)
    options = KernelOptions(MLSTM_EXP, 0.5, case.L)
    arguments = Arguments(*(inputs[name] for name in ("q", "k", "v", "f", "i")))  # type: ignore[arg-type]
    _, last, saved = chunkwise.forward(arguments, options)
    q, v = inputs["q"], inputs["v"]
    empty = chunkwise.empty_saved(q, v, options)  # type: ignore[arg-type]
    assert [(x.shape, x.dtype) for x in saved] == [(x.shape, x.dtype) for x in empty]
    assert isinstance(last, State)
