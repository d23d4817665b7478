"""Retention, Gated Retention, Simple GLA, Lightning attention, Mamba 2: each against its recurrence written out.

The definitions below know nothing of gates as values: a loop over steps in float64, and autograd for its gradients.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from tflabench import ops
from tflabench.kernels.common import operators
from tflabench.kernels.mamba2 import epilogue, prologue
from tflabench.kernels.state import State

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = [pytest.mark.gpu] if DEVICE == "cuda" else []

BATCH, HEADS, T, D_QK, D_HV = 2, 2, 37, 16, 32
Inputs = dict[str, Any]


def loop(q: Tensor, k: Tensor, v: Tensor, forget: Tensor, write: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """h_t = q_t^T S_t of S_t = forget_t S_{t-1} + write_t k_t v_t^T, and the last S."""
    S, h = start, []
    for t in range(v.shape[2]):
        new = write[:, :, t, None, None] * k[:, :, t, :, None] * v[:, :, t, None, :]
        S = forget[:, :, t, None, None] * S + new
        h.append((q[:, :, t, None, :] @ S)[:, :, 0])
    return torch.stack(h, 2), S


def attention(decay: Callable[[Inputs], Tensor]) -> Callable[[Inputs], tuple[Tensor, Tensor]]:
    def definition(x: Inputs) -> tuple[Tensor, Tensor]:
        forget = decay(x).expand(BATCH, HEADS, T)
        return loop(x["q"] * D_QK**-0.5, x["k"], x["v"], forget, torch.ones_like(forget), x["start"])

    return definition


def mamba2(x: Inputs) -> tuple[Tensor, Tensor]:
    dt = x["dt"]
    if "dt_bias" in x:
        dt = dt + x["dt_bias"][:, None]
    if x.get("dt_softplus"):
        dt = softplus(dt)
    B, C = (x[name].repeat_interleave(HEADS // x[name].shape[1], 1) for name in "BC")
    y, S = loop(C, B, x["x"], torch.exp(dt * x["A"][:, None]), dt, x["start"])
    if "D" in x:
        y = y + (x["D"][:, None] if x["D"].dim() == 1 else x["D"])[..., None, :] * x["x"]
    return (y * silu(x["z"]) if "z" in x else y), S


@dataclass(frozen=True)
class Recurrence:
    """An operation, its decode step, its definition, and the shapes of its inputs by argument name."""

    op: Callable[..., Any]
    step: Callable[..., Tensor]
    definition: Callable[[Inputs], tuple[Tensor, Tensor]]
    inputs: Callable[[], Inputs]


def random(*shape: int) -> Tensor:
    return torch.randn(shape)


def qkv(**gates: Tensor) -> Inputs:
    rows = (BATCH, HEADS, T)
    return {"q": random(*rows, D_QK), "k": random(*rows, D_QK), "v": random(*rows, D_HV), **gates}


def mamba2_inputs(groups: int, **more: Any) -> Inputs:
    rows = (BATCH, HEADS, T)
    x = {"x": random(*rows, D_HV), "dt": random(*rows), "A": -torch.rand(HEADS) - 0.1}
    return x | {name: random(BATCH, groups, T, D_QK) for name in "BC"} | more


def gates() -> Tensor:
    return random(BATCH, HEADS, T)


RECURRENCES = {
    "retention": Recurrence(
        ops.retention,
        ops.retention_step,
        attention(lambda x: x["log_decay"].exp()[:, None]),
        lambda: qkv(log_decay=-torch.rand(HEADS) / 4),
    ),
    "gated_retention": Recurrence(
        ops.gated_retention,
        ops.gated_retention_step,
        attention(lambda x: x["f"].sigmoid() ** (1 / x["temperature"])),
        lambda: qkv(f=gates()) | {"temperature": 4.0},
    ),
    "simple_gla": Recurrence(
        ops.simple_gla,
        ops.simple_gla_step,
        attention(lambda x: x["g"].exp()),
        lambda: qkv(g=-gates().abs()),
    ),
    "lightning_attention": Recurrence(
        ops.lightning_attention,
        ops.lightning_attention_step,
        attention(lambda x: (-x["slopes"]).exp()[:, None]),
        lambda: qkv(slopes=torch.rand(HEADS)),
    ),
    "mamba2": Recurrence(
        ops.mamba2_ssd,
        ops.mamba2_ssd_step,
        mamba2,
        lambda: mamba2_inputs(1) | {"dt": torch.rand(BATCH, HEADS, T) + 0.1},
    ),
    "mamba2_full": Recurrence(
        ops.mamba2_ssd,
        ops.mamba2_ssd_step,
        mamba2,
        lambda: mamba2_inputs(
            1,  # both heads share B and C
            D=random(HEADS),
            z=random(BATCH, HEADS, T, D_HV),
            dt_bias=random(HEADS),
            dt_softplus=True,
        ),
    ),
    "mamba2_wide_D": Recurrence(
        ops.mamba2_ssd,
        ops.mamba2_ssd_step,
        mamba2,
        lambda: mamba2_inputs(2, D=random(HEADS, D_HV), dt_softplus=True),
    ),
}
every_recurrence = pytest.mark.parametrize("recurrence", RECURRENCES.values(), ids=RECURRENCES.keys())


def drawn(recurrence: Recurrence, dtype: torch.dtype = torch.float32) -> Inputs:
    """Leaves by argument name, what is no tensor as it is, and an initial state "start"."""
    torch.manual_seed(0)
    x = recurrence.inputs() | {"start": random(BATCH, HEADS, D_QK, D_HV)}
    return {n: y.to(DEVICE, dtype).requires_grad_() if isinstance(y, Tensor) else y for n, y in x.items()}


def double(x: Inputs) -> Inputs:
    return {n: y.detach().double().requires_grad_() if isinstance(y, Tensor) else y for n, y in x.items()}


def with_gradients(x: Inputs, h: Tensor, last: Tensor) -> dict[str, Tensor]:
    """h, the last state and the gradient of a loss in both, by argument."""
    leaves = {n: y for n, y in x.items() if isinstance(y, Tensor)}
    loss = sum((y * torch.linspace(-1, 1, y.numel(), device=y.device).view_as(y)).sum() for y in (h, last))
    grads = torch.autograd.grad(loss, list(leaves.values()))  # type: ignore[arg-type]
    return {"h": h, "last": last} | {f"d{n}": g for n, g in zip(leaves, grads, strict=True)}


def computed(recurrence: Recurrence, x: Inputs, **options: Any) -> dict[str, Tensor]:
    arguments = {n: y for n, y in x.items() if n != "start"}
    if options.get("layout") == "bthd":
        arguments = {n: y.transpose(1, 2) if has_time(y) else y for n, y in arguments.items()}
    h, state = recurrence.op(**arguments, initial_state=State(x["start"]), return_last_state=True, **options)
    return with_gradients(x, h.transpose(1, 2) if options.get("layout") == "bthd" else h, state.C)


def has_time(y: Any) -> bool:
    return isinstance(y, Tensor) and y.dim() >= 3


def assert_close(found: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float) -> None:
    assert found.keys() == wanted.keys()
    for name, want in wanted.items():
        error = ((found[name] - want).norm() / want.norm()).item()
        assert error <= tolerance, f"{name}: {error:.1e}"  # false for NaN


@pytest.mark.parametrize(
    ("implementation", "layout", "tolerance"),
    [
        ("reference", "bhtd", 1e-12),
        ("reference", "bthd", 1e-12),
        ("tfla_xl", "bthd", 2e-5),
    ],
)
@every_recurrence
def test_values_and_every_gradient_are_the_definitions(recurrence, implementation, layout, tolerance):
    """37 steps in chunks of 16: ragged, over chunks; the reference in float64."""
    x = drawn(recurrence)
    exact = double(x)
    found = computed(
        recurrence,
        exact if implementation == "reference" else x,
        implementation=implementation,
        layout=layout,
        chunk_size=16,
    )
    assert_close(found, with_gradients(exact, *recurrence.definition(exact)), tolerance)


@pytest.mark.parametrize("implementation", ["reference", "triton"])
@every_recurrence
def test_steps_are_the_sequence(recurrence, implementation):
    x = {n: y.detach() if isinstance(y, Tensor) else y for n, y in drawn(recurrence).items()}
    wanted, last = recurrence.definition(double(x))
    state = State(x.pop("start").clone())
    for t in range(T):
        now = {n: y[:, :, t] if has_time(y) else y for n, y in x.items()}
        h = recurrence.step(**now, state=state, implementation=implementation)
        torch.testing.assert_close(h.double(), wanted[:, :, t], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(state.C.double(), last, rtol=1e-4, atol=1e-4)


@every_recurrence
def test_compiles_to_a_full_graph(recurrence):
    x = drawn(recurrence)
    wanted = computed(recurrence, x, implementation="reference")
    arguments = {n: y for n, y in x.items() if n != "start"}
    compiled = torch.compile(recurrence.op, fullgraph=True, backend="aot_eager")
    h, state = compiled(
        **arguments, initial_state=State(x["start"]), return_last_state=True, implementation="reference"
    )
    assert_close(with_gradients(x, h, state.C), wanted, 1e-5)
    torch._dynamo.reset()


@every_recurrence
def test_autocast_casts_what_products_read(recurrence):
    x = drawn(recurrence)
    x.pop("start")
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        h, state = recurrence.op(**x, return_last_state=True, implementation="reference")
    assert h.dtype == torch.bfloat16
    assert state.C.dtype == torch.float32
    h.float().sum().backward()
    assert all(y.grad is not None and y.grad.dtype == torch.float32 for y in x.values() if isinstance(y, Tensor))


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_step_size_far_below_zero_is_its_exponential():
    """softplus of -90 is 8e-40: less than float32 holds, but neither its logarithm nor its gradient is lost."""
    x = drawn(RECURRENCES["mamba2_wide_D"])
    del x["D"]
    with torch.no_grad():
        x["dt"].copy_(torch.linspace(-90, 3, x["dt"].numel()).view_as(x["dt"])[:, torch.randperm(HEADS)])
    exact = double(x)
    recurrence = Recurrence(ops.mamba2_ssd, ops.mamba2_ssd_step, mamba2, dict)
    found = computed(recurrence, x, implementation="tfla_xl", chunk_size=16)
    assert_close(found, with_gradients(exact, *mamba2(exact)), 2e-5)


def test_retnets_decays_are_the_default():
    x = drawn(RECURRENCES["retention"])
    q, k, v = (x[n] for n in "qkv")
    gamma = ops.retnet_log_decays(HEADS).exp()
    torch.testing.assert_close(gamma, 1 - torch.tensor([1 / 32, 1 / 64]))
    given = ops.retention(q, k, v, gamma.log().to(DEVICE), implementation="reference")
    torch.testing.assert_close(ops.retention(q, k, v, implementation="reference"), given)
    swapped = ops.retention(*(y.transpose(1, 2) for y in (q, k, v)), layout="bthd", implementation="reference")
    torch.testing.assert_close(swapped.transpose(1, 2), given)


def test_lightnings_slopes_fall_with_the_layer():
    assert ops.lightning_slopes(4, 0, 8).tolist() == [0, 2, 4, 6]
    assert ops.lightning_slopes(4, 6, 8).tolist() == [0, 0.5, 1, 1.5]


def test_the_epilogue_is_opaque_to_torch():
    x = drawn(RECURRENCES["mamba2_full"])
    arguments = (x["x"].transpose(1, 2).contiguous().transpose(1, 2), x["x"], x["D"], x["z"])
    torch.library.opcheck(torch.ops.tflabench.skip_and_gate, arguments)
    torch.library.opcheck(torch.ops.tflabench.skip_and_gate, (*arguments[:3], None))


def test_the_reference_has_second_derivatives_around_the_recurrence_too(monkeypatch):
    """On a GPU, too, where its bias, its skip connection and its gate would be kernels."""
    monkeypatch.setattr(operators, "run_on", lambda *tensors: True)
    x = drawn(RECURRENCES["mamba2_full"])
    del x["start"]
    y = ops.mamba2_ssd(**x, implementation="reference", chunk_size=16)
    grads = torch.autograd.grad(y.square().sum(), (x["dt_bias"], x["D"], x["z"]), create_graph=True)
    total = torch.stack([g.square().sum() for g in grads]).sum()
    second = torch.autograd.grad(total, (x["dt_bias"], x["D"], x["z"]))
    assert all(g.isfinite().all() and g.any() for g in second)


@pytest.mark.parametrize("wide", [False, True])
def test_the_reference_of_a_step_is_pytorch_around_the_recurrence_too(wide, monkeypatch):
    """On a GPU, too, where its skip connection and its gate would be kernels."""
    monkeypatch.setattr(operators, "run_on", lambda *tensors: True)
    monkeypatch.setattr(epilogue, "_kernels", lambda: pytest.fail("a kernel in Triton"))
    x, dt, z = random(BATCH, HEADS, 16), random(BATCH, HEADS).abs(), random(BATCH, HEADS, 16)
    b, c = (random(BATCH, 1, 16) for _ in range(2))
    D = random(HEADS, 16) if wide else random(HEADS)
    state = State(torch.zeros(BATCH, HEADS, 16, 16), None, None)
    given = (x, dt, -torch.ones(HEADS), b, c)
    y = ops.mamba2_ssd_step(*given, state, D=D, z=z, implementation="reference")
    h = torch.einsum("bgk, bgk, bh, bhd -> bhd", c, b, dt, x)  # from a state of zeros
    torch.testing.assert_close(y, (h + (D if wide else D[:, None]) * x) * silu(z))


def test_the_prologue_is_opaque_to_torch():
    dt, bias = (random(*shape).to(DEVICE).requires_grad_() for shape in ((BATCH, T, HEADS), (HEADS,)))
    torch.library.opcheck(torch.ops.tflabench.add_bias, (dt.transpose(1, 2), bias))


@pytest.mark.parametrize("heads", [3, 70])
@pytest.mark.parametrize("head_axis", [1, 2])
def test_the_prologue_in_triton_is_that_in_pytorch(head_axis, heads):
    """dt as a part of a wider tensor, as Mamba 2 has it."""
    torch.manual_seed(0)
    shape = (2, 45, 2 * heads) if head_axis == 2 else (2, 2 * heads, 45)
    whole, bias = random(*shape).double().requires_grad_(), random(heads).double().requires_grad_()
    dt = whole.narrow(head_axis, heads, heads)
    wanted = prologue.add_bias(dt, bias, head_axis=head_axis).transpose(1, head_axis)
    on_device = dt.float().to(DEVICE).transpose(1, head_axis)
    found = torch.ops.tflabench.add_bias(on_device, bias.float().to(DEVICE))
    assert found.is_contiguous()
    torch.testing.assert_close(found.double().cpu(), wanted)
    weight = random(*wanted.shape)
    grads = torch.autograd.grad((found * weight.to(DEVICE)).sum(), (whole, bias))
    for a, b in zip(grads, torch.autograd.grad((wanted * weight).sum(), (whole, bias)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_the_prologue_reads_heads_that_lie_far_apart(tmp_path):
    """Where the number of a head times its stride is beyond 32 bits: in a file, of which next to nothing is written."""
    heads, steps, stride = 40, 5, 2**26
    size = (heads - 1) * stride + steps
    memory = torch.from_file(str(tmp_path / "wide"), shared=True, size=size, dtype=torch.float16)
    dt = memory.as_strided((1, heads, steps), (size, stride, 1))
    dt.copy_(random(1, heads, steps))
    bias = random(heads)
    torch.testing.assert_close(torch.ops.tflabench.add_bias(dt, bias), dt.float() + bias[:, None])


def test_the_epilogue_refuses_second_derivatives():
    h, x, z = (random(BATCH, HEADS, T, 16).requires_grad_() for _ in range(3))
    y = torch.ops.tflabench.skip_and_gate(*(t.to(DEVICE) for t in (h, x)), None, z.to(DEVICE))
    (dz,) = torch.autograd.grad(y.sum(), z, create_graph=True)
    with pytest.raises(RuntimeError, match=r"no second derivatives: .*implementation='reference'"):
        dz.sum().backward()


@pytest.mark.parametrize("wide", [False, True], ids=["D of a head", "D of a column"])
@pytest.mark.parametrize("names", [("D",), ("z",), ("D", "z")], ids="+".join)
def test_the_epilogue_in_triton_is_that_in_pytorch(names, wide):
    torch.manual_seed(0)
    h, x, z = (random(BATCH, T, HEADS, 24).transpose(1, 2).double().requires_grad_() for _ in range(3))
    D = (random(HEADS, 24) if wide else random(HEADS)).double().requires_grad_()
    given = {"h": h, "x": x, "D": D if "D" in names else None, "z": z if "z" in names else None}
    leaves = [y for n, y in given.items() if y is not None and (n != "x" or "D" in names)]
    wanted = epilogue.skip_and_gate(*given.values(), head_axis=1)
    found = torch.ops.tflabench.skip_and_gate(*(None if y is None else y.float().to(DEVICE) for y in given.values()))
    weight = random(*h.shape)
    torch.testing.assert_close(found.double().cpu(), wanted, rtol=1e-5, atol=1e-5)
    grads = torch.autograd.grad((found * weight.to(DEVICE)).sum(), leaves)
    for name, a, b in zip(given, grads, torch.autograd.grad((wanted * weight).sum(), leaves), strict=False):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, msg=name)


BAD_INPUTS = {
    "positive_log_decay": ("retention", {"log_decay": torch.tensor([0.0, 2.0])}, "log_decay is up to 2: it must be"),
    "positive_g": ("simple_gla", {"g": torch.ones(BATCH, HEADS, T)}, "g is up to 1: it must be at most 0"),
    "negative_slope": ("lightning_attention", {"slopes": -torch.ones(HEADS)}, "slopes is down to -1: it must be"),
    "slopes_shape": ("lightning_attention", {"slopes": torch.ones(3)}, "slopes has the shape (3,): it must be (2,)"),
    "g_shape": ("simple_gla", {"g": -torch.ones(BATCH, T, HEADS)}, "g has the shape (2, 37, 2): it must be (2, 2, 37)"),
    "v_shape": ("retention", {"v": torch.ones(BATCH, HEADS, T)}, "v has the shape (2, 2, 37): it must be (B, H, T, d)"),
    "positive_A": ("mamba2", {"A": torch.ones(HEADS)}, "A is up to 1: it must be at most 0"),
    "groups": ("mamba2", {"B": torch.ones(BATCH, 3, T, D_QK)}, "B has 3 groups: they must divide the 2 heads of x"),
    "groups_of_C": ("mamba2", {"C": torch.ones(BATCH, 2, T, D_QK)}, "C has the shape (2, 2, 37, 16): it must be (2, 1"),
    "dt_shape": ("mamba2", {"dt": torch.ones(BATCH, HEADS)}, "dt has the shape (2, 2): it must be (2, 2, 37)"),
    "A_shape": ("mamba2", {"A": -torch.ones(3)}, "A has the shape (3,): it must be (2,)"),
    "x_shape": ("mamba2", {"x": torch.ones(BATCH, HEADS, T)}, "x has the shape (2, 2, 37): it must be (B, H, T, d)"),
    "D_shape": ("mamba2_full", {"D": torch.ones(HEADS, 3)}, "D has the shape (2, 3): it must be (2, 32)"),
    "z_shape": ("mamba2_full", {"z": torch.ones(BATCH, HEADS, T)}, "z has the shape (2, 2, 37): it must be (2, 2, 37"),
    "bias_shape": ("mamba2_full", {"dt_bias": torch.ones(1)}, "dt_bias has the shape (1,): it must be (2,)"),
    "shared_heads": ("simple_gla", {n: torch.ones(BATCH, 3, T, 16) for n in "qk"}, "v has 2 heads: it must have a mul"),
    "temperature": ("gated_retention", {"temperature": 0.0}, "temperature is 0.0: it must be positive and finite"),
}


@pytest.mark.skipif(DEVICE != "cpu", reason="a GPU's values are not looked at")
@pytest.mark.parametrize(("name", "changes", "words"), BAD_INPUTS.values(), ids=BAD_INPUTS.keys())
def test_bad_input_is_named(name, changes, words):
    x = {n: y for n, y in drawn(RECURRENCES[name]).items() if n != "start"}
    with pytest.raises(ValueError, match=re.escape(words)) as raised:
        RECURRENCES[name].op(**x | changes)
    assert "\n" not in str(raised.value)
