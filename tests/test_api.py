"""The public operations: values, gradients, layouts and states, what torch's compilers see, what the user gets wrong.

The operator is tried with kernels made of PyTorch ("probe"), which are quick and right.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from tflabench.kernels import api, backends, epilogue, prologue, reference
from tflabench.kernels.chunkwise_operator import setup_key
from tflabench.kernels.hopper import chunkwise as hopper
from tflabench.kernels.state import State, zero_state
from tflabench.kernels.step import step
from tflabench.kernels.tfla import chunkwise as tfla
from tflabench.kernels.tfla import step as decode
from tflabench.kernels.types import MLSTM_EXP, MLSTM_SIG, Gate

B, H, T, D_QK, D_HV = 2, 2, 40, 16, 32
GATES = {"exp": MLSTM_EXP, "sig": MLSTM_SIG, "retention": Gate("fixed", "none"), "mamba2": Gate("log_decay", "step")}
PROBE: Any = "probe"  # no Implementation that types know of
every_gate = pytest.mark.parametrize("gate", GATES.values(), ids=GATES.keys())
every_implementation = pytest.mark.parametrize("implementation", ["reference", "probe"])


def map_state(change: Callable[[Tensor], Tensor], state: State) -> State:
    C, n, m = state
    return State(change(C), None if n is None else change(n), None if m is None else change(m))


class Probe:
    """Keeps to the contract of backends.Kernels by way of the reference, and remembers how it was called."""

    def __init__(self) -> None:
        self.calls: list[dict] = []
        self.d_last: list[State | None] = []
        self.gate_gradients: list[bool] = []

    def forward(self, q, k, v, f, i, initial, *, config, return_last_state, **options):
        self.calls.append({"q": q, "v": v, "f": f, "config": config, "last": return_last_state, **options})
        h, last = reference.chunkwise(q, k, v, f, i, initial, **options)
        last = map_state(torch.clone, last) if return_last_state else None
        return torch.empty_like(v).copy_(h), last, (v.new_ones(3),)

    def backward(self, dh, d_last, *args, **options):
        self.d_last.append(d_last)
        # Operators run below autograd; a thread of its own starts above it.
        with ThreadPoolExecutor(1) as other:
            return other.submit(self._backward, dh, d_last, *args, **options).result()

    def _backward(self, dh, d_last, q, k, v, f, i, initial, saved, *, config, gate_gradients, **options):
        assert saved[0].equal(v.new_ones(3))
        self.gate_gradients.append(gate_gradients)
        inputs = [q, k, v, f, i, *(initial[:2] if initial is not None else (None, None))]
        leaves: list[Any] = [x if x is None else x.detach().requires_grad_() for x in inputs]
        q, k, v, f, i, C, n = leaves
        start = None if initial is None else State(C, n, initial.m)
        h, last = reference.chunkwise(q, k, v, f, i, start, **options)
        outputs = [(h, dh), *zip(last[:2], d_last[:2] if d_last is not None else (None, None), strict=True)]
        ends, weights = zip(*((y, dy) for y, dy in outputs if y is not None and dy is not None), strict=True)
        found = iter(torch.autograd.grad(ends, [x for x in leaves if x is not None], weights, materialize_grads=True))
        grads = [x if x is None else torch.empty_like(x).copy_(next(found)) for x in leaves]
        return tuple(grads if gate_gradients else [*grads[:3], None, None, *grads[5:]])

    def kernels(self) -> backends.Kernels:
        return backends.Kernels(
            forward=self.forward,
            backward=self.backward,
            empty_saved=lambda q, v, **options: (v.new_ones(3),),
            refuses=lambda q, v, *, chunk_size, **_: "takes chunks up to 64" if chunk_size > 64 else None,
            default_chunk_size=lambda q, v, *, gate, backward: 32,
        )


@pytest.fixture
def probe(monkeypatch):
    probe = Probe()
    monkeypatch.setitem(backends.KERNELS, "probe", probe.kernels)
    backends.kernels_of.cache_clear()
    yield probe
    backends.kernels_of.cache_clear()
    torch._dynamo.reset()


def inputs(gate: Gate = MLSTM_EXP, dtype: torch.dtype = torch.float32) -> dict:
    """q, k, v, f, i as leaves, for keywords of `chunkwise`."""
    torch.manual_seed(0)
    x = {"q": torch.randn(B, H, T, D_QK), "k": torch.randn(B, H, T, D_QK), "v": torch.randn(B, H, T, D_HV)}
    x["f"] = {"sigmoid": torch.randn(B, H, T) + 3, "log_decay": -torch.rand(B, H, T), "fixed": -torch.rand(H)}[
        gate.forget
    ]
    if gate.input != "none":
        x["i"] = torch.rand(B, H, T) + 0.1 if gate.input == "step" else torch.randn(B, H, T)
    return {name: t.to(dtype).requires_grad_() for name, t in x.items()}


def start(gate: Gate) -> State:
    n = torch.randn(B, H, D_QK).requires_grad_() if gate.normalize else None
    return State(torch.randn(B, H, D_QK, D_HV).requires_grad_(), n, torch.randn(B, H) if gate.stabilized else None)


def results(compute, x: dict, state: State | None, **options) -> dict[str, Tensor]:
    """Outputs and gradients of a loss in h, the last C and the last n, by name."""
    h, last = compute(**x, initial_state=state, return_last_state=True, **options)
    found = {"h": h, "last.C": last.C} | ({} if last.n is None else {"last.n": last.n})
    loss = torch.stack(
        [(y * torch.linspace(-1, 1, y.numel(), device=y.device).view_as(y)).sum() for y in found.values()]
    ).sum()
    leaves = x | ({} if state is None else {n: t for n, t in zip("Cn", state, strict=False) if t is not None})
    grads = torch.autograd.grad(loss, list(leaves.values()))
    return found | {f"d{n}": g for n, g in zip(leaves, grads, strict=True)}


def double(x: Tensor) -> Tensor:
    return x.detach().double().requires_grad_(x.requires_grad)


def assert_close(found: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float = 1e-4) -> None:
    assert found.keys() == wanted.keys()
    for name, want in wanted.items():
        error = (found[name] - want).abs().max() / want.abs().max().clamp(min=1e-3)
        assert error <= tolerance, f"{name}: {error:.1e}"


@pytest.mark.parametrize("with_state", [False, True], ids=["from_nothing", "from_state"])
@every_gate
@every_implementation
def test_values_and_every_gradient(probe, implementation, gate, with_state):
    x, state = inputs(gate), start(gate) if with_state else None
    exact = None if state is None else map_state(double, state)
    wanted = results(api.chunkwise, {n: double(t) for n, t in x.items()}, exact, gate=gate, implementation="reference")
    assert_close(results(api.chunkwise, x, state, gate=gate, implementation=implementation), wanted)


def test_named_gates_are_the_papers():
    x = inputs()
    args = [x[n] for n in ("q", "k", "v", "i", "f")]
    for named, gate in ((api.mlstm_exp, MLSTM_EXP), (api.mlstm_sig, MLSTM_SIG)):
        assert named(*args, chunk_size=16).equal(api.chunkwise(**x, gate=gate, chunk_size=16))


@every_gate
def test_layout_bthd_makes_no_copies(probe, gate):
    x = inputs(gate)
    swapped = {n: t if t.dim() == 1 else t.detach().transpose(1, 2).contiguous().requires_grad_() for n, t in x.items()}
    h = api.chunkwise(**swapped, gate=gate, layout="bthd", implementation=PROBE)
    seen = probe.calls[-1]
    assert seen["q"].data_ptr() == swapped["q"].data_ptr()
    assert seen["f"].data_ptr() == swapped["f"].data_ptr()
    assert h.is_contiguous()
    wanted = api.chunkwise(**x, gate=gate, implementation=PROBE)
    assert h.transpose(1, 2).equal(wanted)
    h.sum().backward()
    wanted.sum().backward()
    for name, t in swapped.items():
        g = t.grad if t.dim() == 1 else t.grad.transpose(1, 2)
        torch.testing.assert_close(g, x[name].grad, msg=name)


@every_implementation
def test_any_strides(probe, implementation):
    x = inputs()
    wanted = results(api.chunkwise, x, None, gate=MLSTM_EXP, implementation=implementation)
    wide = {n: torch.stack([t.detach(), t.detach()], dim=-1)[..., 0].requires_grad_() for n, t in x.items()}
    assert not wide["q"].is_contiguous()
    assert_close(results(api.chunkwise, wide, None, gate=MLSTM_EXP, implementation=implementation), wanted, 1e-6)


@every_implementation
def test_gradient_of_the_last_state_alone(probe, implementation):
    x = inputs()
    _, last = api.chunkwise(**x, gate=MLSTM_EXP, return_last_state=True, implementation=implementation)
    assert last.n is not None
    dk, dv = torch.autograd.grad(last.n.sum(), [x["k"], x["v"]], materialize_grads=True)
    assert (dv == 0).all()
    assert dk.abs().sum() > 0


@every_implementation
def test_continuing_from_the_last_state_is_one_sequence(probe, implementation):
    x, cut = inputs(), 24
    whole = api.chunkwise(**x, gate=MLSTM_EXP, implementation=implementation)
    first = {n: t[:, :, :cut] for n, t in x.items()}
    rest = {n: t[:, :, cut:] for n, t in x.items()}
    h, state = api.chunkwise(**first, gate=MLSTM_EXP, return_last_state=True, implementation=implementation)
    more = api.chunkwise(**rest, gate=MLSTM_EXP, initial_state=state, implementation=implementation)
    torch.testing.assert_close(torch.cat([h, more], 2), whole, rtol=1e-4, atol=1e-4)


@every_implementation
def test_nan_is_passed_through(probe, implementation):
    x = {n: t.detach() for n, t in inputs().items()}
    x["v"][0, 0, 5, 3] = math.nan
    h = api.chunkwise(**x, gate=MLSTM_EXP, implementation=implementation)
    assert h[0, 0, 5:, 3].isnan().all()
    assert h[1].isfinite().all()


@pytest.mark.parametrize("gate", [MLSTM_EXP, MLSTM_SIG], ids=["exp", "sig"])
def test_opcheck(probe, gate):
    x, state = inputs(gate), start(gate)
    key = setup_key("probe", astuple(gate)[:3], torch.float32, None)
    op, backward = torch.ops.tflabench.chunkwise, torch.ops.tflabench.chunkwise_backward
    torch.library.opcheck(op, (*(x[n] for n in "qkvfi"), *state, 0.25, 1.0, 16, False, key, None, True))
    transposed = [x[n].detach().transpose(1, 2).contiguous().transpose(1, 2) for n in "qkvfi"]
    torch.library.opcheck(op, (*transposed, None, None, None, 0.25, 1.0, None, True, key, None, False))
    dh, saved = torch.randn_like(transposed[2]), [torch.ones(3)]
    for gates in (True, False):
        arguments = (dh, None, None, *transposed, None, None, None, saved, 0.25, 1.0, None, True, key, None, gates)
        torch.library.opcheck(backward, arguments)


def test_kernels_are_asked_only_for_what_is_used(probe):
    """The last state where it is returned, gate gradients where a gate has one."""
    x = inputs(MLSTM_SIG)
    api.chunkwise(**x, gate=MLSTM_SIG, implementation=PROBE, return_last_state=True)
    assert probe.calls[-1]["last"]
    x = {name: y.detach().requires_grad_(name in "qkv") for name, y in x.items()}
    h = api.chunkwise(**x, gate=MLSTM_SIG, implementation=PROBE)
    assert not probe.calls[-1]["last"]
    found = torch.autograd.grad(h.sum(), [x[name] for name in "qkv"])
    assert probe.gate_gradients == [False]
    wanted = api.chunkwise(**x, gate=MLSTM_SIG, implementation="reference").sum()
    for y, y_wanted in zip(found, torch.autograd.grad(wanted, [x[name] for name in "qkv"]), strict=True):
        torch.testing.assert_close(y, y_wanted)
    x["i"].requires_grad_()
    torch.autograd.grad(api.chunkwise(**x, gate=MLSTM_SIG, implementation=PROBE).sum(), [x["i"]])
    assert probe.gate_gradients == [False, True]


@pytest.mark.parametrize(
    ("implementation", "gate"),
    [("reference", MLSTM_EXP), *(("probe", gate) for gate in GATES.values())],
    ids=["reference-exp", *(f"probe-{name}" for name in GATES)],
)
def test_compiles_to_a_full_graph(probe, implementation, gate):
    compiled = torch.compile(api.chunkwise, fullgraph=True, backend="aot_eager")
    options = {
        "gate": gate,
        "implementation": implementation,
        "config": Expert() if implementation == "probe" else None,
    }
    x, state = inputs(gate), start(gate)
    wanted = results(api.chunkwise, x, state, **options)
    assert_close(results(compiled, x, state, **options), wanted, 1e-5)
    assert implementation == "reference" or probe.calls[-1]["config"] == Expert()
    shorter = {n: t if t.dim() == 1 else t[:, :, :24] for n, t in x.items()}
    wanted = results(api.chunkwise, shorter, state, **options)
    assert_close(results(compiled, shorter, state, **options), wanted, 1e-5)


OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "mlstm_exp": lambda q, k, v, f, **options: api.mlstm_exp(q, k, v, f, f, **options),
    "mlstm_sig": lambda q, k, v, f, **options: api.mlstm_sig(q, k, v, f, f, **options),
    "retention": lambda q, k, v, f, **options: api.retention(q, k, v, **options),
    "gated_retention": lambda q, k, v, f, **options: api.gated_retention(q, k, v, f, **options),
    "simple_gla": lambda q, k, v, f, **options: api.simple_gla(q, k, v, -f.exp(), **options),
    "lightning_attention": lambda q, k, v, f, **options: api.lightning_attention(q, k, v, f[0, :, 0].exp(), **options),
    "mamba2_ssd": lambda q, k, v, f, **options: api.mamba2_ssd(
        v, f, -f[0, :, 0].exp(), k[:, :1], q[:, :1], dt_softplus=True, **options
    ),
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS.keys())
def test_compiles_for_sizes_that_change(probe, operation):
    """With dynamic=True every size and float is a symbol; no length asks for another graph than the first."""
    count, graphs = CompileCounterWithBackend("aot_eager"), []
    compiled = torch.compile(operation, fullgraph=True, backend=count, dynamic=True)
    for T in (20, 33, 40):
        x = [torch.randn(B, H, T, d) for d in (D_QK, D_QK, D_HV)]
        f = torch.randn(B, H, T)
        for y in (*x, f):
            y.requires_grad_()
        found = compiled(*x, f, implementation=PROBE)
        wanted = operation(*x, f, implementation="reference")
        assert_close({"h": found}, {"h": wanted})
        for a, b in zip(
            *(torch.autograd.grad(y.sum(), (*x, f), allow_unused=True) for y in (found, wanted)), strict=True
        ):
            assert (a is None) == (b is None)
            if a is not None and b is not None:
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
        graphs.append(count.frame_count)
    assert len(set(graphs)) == 1


@pytest.mark.parametrize("compiled", [False, True])
def test_auto_chooses_for_a_backward_where_a_gradient_is_asked_for(monkeypatch, probe, compiled):
    def forward(q, k, v, *others, chunk_size, **options):
        return torch.full_like(v, chunk_size), None, (v.new_ones(3),)

    sizes = {True: 32, False: 64}
    made = probe.kernels()._replace(forward=forward, default_chunk_size=lambda q, v, *, gate, backward: sizes[backward])
    monkeypatch.setitem(backends.KERNELS, "probe", lambda: made)
    call = torch.compile(api.mlstm_sig, fullgraph=True, backend="aot_eager") if compiled else api.mlstm_sig
    x = inputs(MLSTM_SIG)
    without = {name: t.detach() for name, t in x.items()}
    for given, enabled, wanted in (
        (x, True, 32),
        (x, False, 64),
        (without, True, 64),
        (without | {"i": x["i"]}, True, 32),
    ):
        with torch.set_grad_enabled(enabled):
            h = call(**given, implementation=PROBE)
        assert (h == wanted).all()
    assert (api.mlstm_sig(**x, implementation=PROBE, chunk_size=16) == 16).all()


@pytest.mark.parametrize(("kernels", "ranges"), [(hopper, 3), (tfla, 1)], ids=["hopper", "tfla"])
def test_a_length_is_no_reason_to_compile_again(monkeypatch, probe, kernels, ranges):
    """As far as the choice of a chunk size goes: from 1024 to 8192 steps once for each power of two at most."""
    monkeypatch.setattr(hopper, "refuses", lambda *args, **options: None)

    def forward(q, k, v, *others, chunk_size, **options):
        return torch.full_like(v, chunk_size), None, (v.new_ones(3),)

    made = probe.kernels()._replace(forward=forward, default_chunk_size=kernels.default_chunk_size)
    monkeypatch.setitem(backends.KERNELS, "probe", lambda: made._replace(refuses=lambda *args, **options: None))
    count, graphs = CompileCounterWithBackend("eager"), set()
    compiled = torch.compile(api.mlstm_sig, fullgraph=True, backend=count, dynamic=True)
    for T in range(1050, 8000, 333):
        q, v, f = torch.ones(1, 4, T, 128), torch.ones(1, 4, T, 256), torch.ones(1, 4, T)
        L = compiled(q, q, v, f, f, implementation=PROBE).flatten()[0]
        assert kernels.default_chunk_size(q, v, gate=MLSTM_SIG, backward=False) == L
        graphs.add(count.frame_count)
    assert len(graphs) == ranges


@pytest.mark.parametrize("implementation", ["tfla_limit", "tfla_xl"])
def test_triton_kernels_are_opaque_to_torch(implementation):
    """As the probe, on a short sequence: interpreted kernels are slow."""
    gate = MLSTM_EXP if implementation == "tfla_xl" else MLSTM_SIG
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = {n: t[:1, :, :20].detach().to(device).requires_grad_() for n, t in inputs(gate).items()}
    key = setup_key(implementation, astuple(gate)[:3], torch.float32, None)
    arguments = (*(x[n] for n in "qkvfi"), None, None, None, 0.25, 1.0, 16, False, key, None, True)
    torch.library.opcheck(torch.ops.tflabench.chunkwise, arguments)
    compiled = torch.compile(api.chunkwise, fullgraph=True, backend="aot_eager")
    options = {"gate": gate, "chunk_size": 16}
    found = results(compiled, x, None, implementation=implementation, **options)
    assert_close(found, results(api.chunkwise, x, None, implementation="reference", **options))
    torch._dynamo.reset()


@every_implementation
def test_autocast_casts_q_k_v_alone(probe, implementation):
    x, state = inputs(), start(MLSTM_EXP)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h, last = api.chunkwise(
            **x, gate=MLSTM_EXP, initial_state=state, return_last_state=True, implementation=implementation
        )
    assert h.dtype == torch.bfloat16
    assert last.C.dtype == torch.float32
    low = x | {n: x[n].bfloat16() for n in "qkv"}
    assert h.equal(api.chunkwise(**low, gate=MLSTM_EXP, initial_state=state, implementation=implementation))
    h.float().sum().backward()
    assert x["q"].grad.dtype == torch.float32


@every_gate
def test_kernels_that_cannot_share_heads_are_given_copies(probe, gate):
    """q and k of one head for both of v: values, gradients, and what the compiler expects of them."""
    x = inputs(gate)
    x |= {n: x[n].detach()[:, :1].clone().requires_grad_() for n in "qk"}
    options = {"gate": gate, "implementation": "probe"}
    wanted = results(api.chunkwise, x, None, gate=gate, implementation="reference")
    assert_close(results(api.chunkwise, x, None, **options), wanted)
    assert probe.calls[-1]["q"].shape == (B, H, T, D_QK)
    compiled = torch.compile(api.chunkwise, fullgraph=True, backend="aot_eager")
    assert_close(results(compiled, x, None, **options), wanted)


@pytest.mark.parametrize("implementation", ["probe", "tfla_xl"])
def test_a_skip_connection(probe, implementation):
    """By kernels that have one and by a pass of its own, for those that do not."""
    if implementation == "tfla_xl" and torch.cuda.is_available():
        pytest.skip("gpu tests run the kernels")
    gate = GATES["retention"]
    x = inputs(gate) | {"skip": torch.tensor([0.5, -2.0]).requires_grad_()}
    exact = {n: double(t) for n, t in x.items()}
    wanted = results(api.chunkwise, exact, None, gate=gate, implementation="reference")
    bare: dict[str, Any] = {n: t for n, t in exact.items() if n != "skip"}
    without = api.chunkwise(**bare, gate=gate, implementation="reference")
    assert_close({"h": wanted["h"]}, {"h": without + exact["skip"][:, None, None] * exact["v"]}, 1e-12)
    options = {"gate": gate, "implementation": implementation, "chunk_size": 16}
    assert_close(results(api.chunkwise, x, None, **options), wanted)
    compiled = torch.compile(api.chunkwise, fullgraph=True, backend="aot_eager")
    assert_close(results(compiled, x, None, **options), wanted)


class Current:
    """Stands for torch.cuda.device_of and keeps the tensor that it was entered with last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tensors: list[Tensor] = []
        monkeypatch.setattr(torch.cuda, "device_of", self.entered)

    @contextmanager
    def entered(self, x: Tensor) -> Iterator[None]:
        self.tensors.append(x)
        yield
        self.tensors.pop()

    def kept_by(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def checked(*args: Any, **options: Any) -> Any:
            assert [x.shape for x in self.tensors] == [args[0].shape]
            return function(*args, **options)

        return checked


def test_kernels_run_with_their_device_as_the_current_one(probe, monkeypatch):
    """Triton launches on the current device, which need not be that of the tensors."""
    current = Current(monkeypatch)
    kernels = probe.kernels()
    guarded = kernels._replace(forward=current.kept_by(kernels.forward), backward=current.kept_by(kernels.backward))
    monkeypatch.setitem(backends.KERNELS, "probe", lambda: guarded)
    assert results(api.chunkwise, inputs(), None, gate=MLSTM_EXP, implementation=PROBE)["dq"].isfinite().all()

    y, D = torch.randn(B, H, T, D_HV), torch.ones(H)
    monkeypatch.setattr(
        epilogue,
        "_kernels",
        lambda: SimpleNamespace(
            forward=current.kept_by(lambda h, x, D, z: torch.empty_like(h)),
            backward=current.kept_by(lambda dy, h, x, D, z: (torch.empty_like(x), torch.empty_like(D), None, None)),
        ),
    )
    torch.ops.tflabench.skip_and_gate(y, y, D, None)
    torch.ops.tflabench.skip_and_gate_backward(y, None, y, D, None)
    dt = torch.randn(B, H, T)
    monkeypatch.setattr(
        prologue,
        "_kernels",
        lambda: SimpleNamespace(
            forward=current.kept_by(lambda x, bias: torch.empty(x.shape)),
            backward=current.kept_by(lambda dy, x, bias: (torch.empty_like(x), torch.empty_like(bias))),
        ),
    )
    torch.ops.tflabench.add_bias(dt, D)
    torch.ops.tflabench.add_bias_backward(dt, dt, D)

    monkeypatch.setattr(decode, "step", current.kept_by(lambda q, k, v, *others, **options: torch.empty_like(v)))
    q, v, gate = torch.randn(B, H, D_QK), torch.randn(B, H, D_HV), torch.randn(B, H)
    torch.ops.tflabench.step(
        *(q, q, v, gate, gate, torch.zeros(B, H, D_QK, D_HV)), None, None, None, None, None, 1.0, "sigmoid", "exp", True
    )
    assert current.tensors == []


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_another_gpu_than_the_current_one():
    x = {n: torch.randn(2, 2, 100, 64, dtype=torch.bfloat16) for n in "qkv"} | {n: torch.randn(2, 2, 100) for n in "fi"}
    found = []
    for device in ("cuda:0", "cuda:1"):
        there = {n: t.to(device).requires_grad_() for n, t in x.items()}
        for implementation in ("auto", "tfla_xl"):
            made = results(api.chunkwise, there, None, gate=MLSTM_EXP, implementation=implementation)
            found.append({n: t.cpu() for n, t in made.items()})
        first: dict[str, Any] = {n: t.detach()[:, :, 0] for n, t in there.items()}
        found[-1]["step"] = step(
            **first, state=zero_state(MLSTM_EXP, 2, 2, 64, 64, device=device), gate=MLSTM_EXP
        ).cpu()
    assert torch.cuda.current_device() == 0
    for first, second in zip(found[:2], found[2:], strict=True):
        for name, wanted in first.items():
            assert second[name].equal(wanted), name


@pytest.mark.parametrize("gate", [MLSTM_EXP, GATES["retention"]], ids=["exp", "retention"])
def test_activation_checkpointing(probe, gate):
    """Forward runs again in backward, and what it saved may be asked for once."""
    x, state = inputs(gate), start(gate)
    x |= {} if gate.normalize else {"skip": torch.tensor([0.5, -2.0]).requires_grad_()}
    wanted = results(api.chunkwise, x, state, gate=gate, implementation="reference")
    checkpointed = partial(checkpoint, api.chunkwise, use_reentrant=False)
    assert_close(results(checkpointed, x, state, gate=gate, implementation=PROBE), wanted)


def test_inference_mode(probe):
    x = {n: t.detach() for n, t in inputs().items()}
    with torch.inference_mode():
        h, last = api.chunkwise(**x, gate=MLSTM_EXP, implementation=PROBE, return_last_state=True)
        first = {n: t[:, :, 0] for n, t in x.items()}
        made = zero_state(MLSTM_EXP, B, H, D_QK, D_HV)
        one = step(**first, state=made, gate=MLSTM_EXP, implementation="triton")
    wanted, wanted_last = api.chunkwise(**x, gate=MLSTM_EXP, implementation="reference", return_last_state=True)
    assert_close({"h": h, "C": last.C, "step": one}, {"h": wanted, "C": wanted_last.C, "step": wanted[:, :, 0]})


def test_double_backward_says_what_to_do(probe):
    x = inputs()
    (dq,) = torch.autograd.grad(
        api.chunkwise(**x, gate=MLSTM_EXP, implementation=PROBE).sum(), x["q"], create_graph=True
    )
    with pytest.raises(RuntimeError, match=r"no second derivatives: .*implementation='reference'"):
        dq.sum().backward()


@dataclass(frozen=True)
class Expert:
    warps: int = 4


def test_forward_mode_is_refused_not_left_out(probe):
    x: dict[str, Any] = {n: t.detach() for n, t in inputs().items()}

    def jvp(implementation: Any) -> Tensor:
        def of_q(q: Tensor) -> Tensor:
            k, v, f, i = (x[name] for name in "kvfi")
            return api.chunkwise(q, k, v, f, i, gate=MLSTM_EXP, implementation=implementation)

        return torch.func.jvp(of_q, (x["q"],), (torch.ones_like(x["q"]),))[1]

    assert jvp("reference").abs().sum() > 0
    with pytest.raises(RuntimeError, match=r"no forward-mode derivatives: .*implementation='reference'"):
        jvp("probe")
    with forward_ad.dual_level():
        x["q"] = forward_ad.make_dual(x["q"], torch.ones_like(x["q"]))
        with pytest.raises(RuntimeError, match="no forward-mode derivatives"):
            api.chunkwise(**x, gate=MLSTM_EXP, implementation=PROBE)


def test_options_reach_the_kernels(probe):
    x = inputs()
    options: dict[str, Any] = {"scale": 0.5, "chunk_size": 16, "state_dtype": torch.bfloat16, "config": Expert(8)}
    api.chunkwise(**x, gate=MLSTM_EXP, implementation=PROBE, **options)
    assert {n: probe.calls[-1][n] for n in options} == options
    api.chunkwise(**x, gate=MLSTM_EXP, implementation=PROBE)
    defaults = {"scale": D_QK**-0.5, "chunk_size": 32, "state_dtype": torch.float32, "config": None}
    assert {n: probe.calls[-1][n] for n in options} == defaults


def test_auto_is_the_reference_where_no_kernel_runs():
    x = inputs()
    assert backends.choose(x["q"], x["v"], gate=MLSTM_EXP)[:2] == ("reference", T)
    assert api.chunkwise(**x, gate=MLSTM_EXP).equal(api.chunkwise(**x, gate=MLSTM_EXP, implementation="reference"))
    assert api.mlstm_exp(*(double(x[n]) for n in ("q", "k", "v", "i", "f"))).dtype == torch.float64


STATE = zero_state(MLSTM_EXP, B, H, D_QK, D_HV)
BY_PROBE = {"implementation": "probe"}
# what differs from a call that works, the error, and what its message says
BAD_INPUTS = {
    "q_not_a_tensor": ({"q": [1.0]}, TypeError, "q is a list: it must be a tensor"),
    "k_integers": ({"k": torch.ones(B, H, T, D_QK).int()}, TypeError, "k is torch.int32: it must be bfloat16"),
    "q_three_sizes": ({"q": torch.ones(B, H, T)}, ValueError, "q has the shape (2, 2, 40): it must be (B, H, T, d)"),
    "no_steps": ({"q": torch.ones(B, H, 0, D_QK)}, ValueError, "every size at least 1"),
    "k_unlike_q": ({"k": torch.ones(B, H, T, 32)}, ValueError, "k has the shape (2, 2, 40, 32): it must be that of q"),
    "v_shorter": ({"v": torch.ones(B, H, 39, D_HV)}, ValueError, "v has the shape (2, 2, 39, 32)"),
    "f_shorter": ({"f": torch.ones(B, H, 39)}, ValueError, "f has the shape (2, 2, 39): it must be (2, 2, 40)"),
    "no_i": ({"i": None}, TypeError, "i is None: it must be a tensor"),
    "i_not_wanted": ({"gate": Gate("sigmoid", "none")}, ValueError, "i is a Tensor: it must be None"),
    "f_of_a_fixed_gate": ({"gate": Gate("fixed")}, ValueError, "f has the shape (2, 2, 40): it must be (2,)"),
    "gate_a_name": ({"gate": "exp"}, TypeError, "gate is a str: it must be a tflabench.ops.Gate"),
    "dtypes_differ": ({"v": torch.ones(B, H, T, D_HV).half()}, TypeError, "they must be of one dtype"),
    "devices_differ": ({"f": torch.ones(B, H, T, device="meta")}, ValueError, "f is on meta: it must be where q is"),
    "skip_shape": ({"gate": MLSTM_SIG, "skip": torch.ones(3)}, ValueError, "skip has the shape (3,): it must be (2,)"),
    "skip_divided": (
        {"skip": torch.ones(H)},
        ValueError,
        "skip is a Tensor: it must be None for Gate(forget=",
    ),
    "layout": ({"layout": "thbd"}, ValueError, "layout is 'thbd': it must be one of bhtd, bthd"),
    "chunk_size_zero": ({"chunk_size": 0}, ValueError, "chunk_size is 0: it must be at least 1"),
    "chunk_size_float": ({"chunk_size": 16.0}, TypeError, "chunk_size is a float: it must be an int or 'auto'"),
    "chunk_size_small": (BY_PROBE | {"chunk_size": 8}, ValueError, "chunk_size is 8: it must be a multiple of 16"),
    "chunk_size_odd": (BY_PROBE | {"chunk_size": 40}, ValueError, "chunk_size is 40: it must be a multiple of 16"),
    "chunk_size_refused": (BY_PROBE | {"chunk_size": 128}, ValueError, "probe takes chunks up to 64"),
    "config": (
        {"implementation": "tfla_xl", "config": {"rows": 64}},
        ValueError,
        "takes a TileConfig as config, not a",
    ),
    "scale_text": ({"scale": "1"}, TypeError, "scale is a str: it must be a float or None"),
    "scale_nan": ({"scale": math.nan}, ValueError, "scale is nan: it must be finite"),
    "state_dtype": ({"state_dtype": torch.float16}, ValueError, "it must be one of torch.float32, torch.bfloat16"),
    "implementation": (
        {"implementation": "triton"},
        ValueError,
        "implementation is 'triton': it must be one of auto, ref",
    ),
    "head_dimension": (
        BY_PROBE | {"v": torch.ones(B, H, T, 24)},
        ValueError,
        "v has the head dimension 24: it must be a",
    ),
    "float64": (
        BY_PROBE | {name: torch.ones(B, H, T, 16).double() for name in "qkv"},
        TypeError,
        "q is torch.float64: it must be bfloat16, float16 or float32",
    ),
    "state_a_tensor": (
        {"initial_state": STATE.C},
        TypeError,
        "initial_state is a Tensor: it must be a tflabench.ops.St",
    ),
    "state_shape": (
        {"initial_state": STATE._replace(C=torch.zeros(B, H, D_HV, D_QK))},
        ValueError,
        "initial_state.C has the shape (2, 2, 32, 16): it must be (2, 2, 16, 32)",
    ),
    "state_without_n": (
        {"initial_state": STATE._replace(n=None)},
        TypeError,
        "initial_state.n is None: it must be a t",
    ),
    "state_with_n": (
        {"gate": MLSTM_SIG, "initial_state": STATE},
        ValueError,
        "initial_state.n is a Tensor: it must be",
    ),
}


@pytest.mark.parametrize(("changes", "error", "words"), BAD_INPUTS.values(), ids=BAD_INPUTS.keys())
def test_bad_input_is_named(probe, changes, error, words):
    given: dict[str, Any] = {**inputs(), "gate": MLSTM_EXP, **changes}
    with pytest.raises(error, match=re.escape(words)) as raised:
        api.chunkwise(**given)
    assert "\n" not in str(raised.value)


def test_a_last_state_that_is_not_used_has_no_gradient(probe):
    x = inputs()
    h, last = api.chunkwise(**x, gate=MLSTM_EXP, implementation=PROBE, return_last_state=True)
    h.sum().backward(retain_graph=True)
    assert probe.d_last == [None]
    last.C.sum().backward()
    assert probe.d_last[1].C.equal(torch.ones_like(last.C))
    assert probe.d_last[1].n is None


def test_a_gate_has_known_parts():
    with pytest.raises(ValueError, match="forget is 'tanh': it must be one of sigmoid, log_decay, fixed, rate"):
        Gate(forget="tanh")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="input is 'tanh': it must be one of exp, sigmoid, step, softplus, none"):
        Gate(input="tanh")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="input is 'exp': it must be a step size, step or softplus, for forget 'rate'"):
        Gate(forget="rate")
    with pytest.raises(ValueError, match="temperature is 2: it must be 1 for forget 'log_decay'"):
        Gate(forget="log_decay", temperature=2)


@pytest.mark.gpu
@pytest.mark.parametrize("gate", [MLSTM_EXP, MLSTM_SIG], ids=["exp", "sig"])
def test_kernels_compile_and_are_captured_in_a_cuda_graph(gate):
    x = {n: t.detach().cuda().requires_grad_() for n, t in inputs(gate, torch.bfloat16).items()}
    wanted = api.chunkwise(**x, gate=gate)
    compiled = torch.compile(api.chunkwise, fullgraph=True)
    assert compiled(**x, gate=gate).equal(wanted)
    grads = torch.autograd.grad(wanted.float().sum(), list(x.values()))
    x = {n: t.detach().requires_grad_() for n, t in x.items()}  # leaves that no other stream has used

    def both():
        h = api.chunkwise(**x, gate=gate)
        return h, torch.autograd.grad(h.float().sum(), list(x.values()))

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        both()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        h, captured = both()
    h.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert h.equal(wanted)
    for name, gradient, expected in zip(x, captured, grads, strict=True):
        assert gradient.equal(expected), name
