"""The torch operator behind the operations: what compilers, autograd and devices see of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from probe import D_HV, D_QK, GATES, PROBE, B, Expert, H, T, assert_close, inputs, probed, results, start
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from tflabench import ops
from tflabench.kernels import api, chunkwise_operator
from tflabench.kernels.chunkwise_operator import setup_key
from tflabench.kernels.families import FAMILIES
from tflabench.kernels.mamba2 import epilogue, prologue
from tflabench.kernels.scalar import step_kernel as decode
from tflabench.kernels.scalar.hopper import chunkwise as hopper
from tflabench.kernels.scalar.tfla import chunkwise as tfla
from tflabench.kernels.state import zero_state
from tflabench.kernels.step import step
from tflabench.kernels.types import MLSTM_EXP, MLSTM_SIG


@pytest.fixture
def probe(monkeypatch):
    yield from probed(monkeypatch)


@pytest.mark.parametrize("gate", [MLSTM_EXP, MLSTM_SIG], ids=["exp", "sig"])
def test_opcheck(probe, gate):
    x, state = inputs(gate), start(gate)
    key = setup_key("probe", "scalar", gate.fields, torch.float32, None)
    op, backward = torch.ops.tflabench.chunkwise, torch.ops.tflabench.chunkwise_backward
    torch.library.opcheck(op, (*(x[n] for n in "qkvfi"), *state, 0.25, 1.0, 16, False, key, None, True, None))
    transposed = [x[n].detach().transpose(1, 2).contiguous().transpose(1, 2) for n in "qkvfi"]
    torch.library.opcheck(op, (*transposed, None, None, None, 0.25, 1.0, None, True, key, None, False, None))
    dh, saved = torch.randn_like(transposed[2]), [torch.ones(3)]
    for gates in (True, False):
        arguments = (
            dh,
            None,
            None,
            *transposed,
            None,
            None,
            None,
            saved,
            0.25,
            1.0,
            None,
            True,
            key,
            None,
            gates,
            None,
        )
        torch.library.opcheck(backward, arguments)


@pytest.mark.parametrize("look", ["mode", "function mode", "subclass", "profiler"])
def test_who_looks_at_operators_sees_them(probe, look):
    """Where nobody does they are left out, with the same results."""
    x, seen = inputs(), []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **kwargs or {})

    class FunctionMode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **kwargs or {})

    class Seen(Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return super().__torch_function__(func, types, args, kwargs)

    def both(x: dict[str, Any]) -> tuple[Tensor, ...]:
        h = api.chunkwise(**x, gate=MLSTM_EXP, implementation=PROBE)
        return h.detach(), *torch.autograd.grad(h.sum(), [x[name] for name in "qkvfi"])

    wanted = both(x)
    if look == "profiler":
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
            found = both(x)
        seen = [event.key.replace("::", ".") for event in profiled.key_averages()]
    elif look == "subclass":
        found = both(x | {"v": x["v"].detach().as_subclass(Seen).requires_grad_()})
    else:
        with Mode() if look == "mode" else FunctionMode():
            found = both(x)
    assert all(map(torch.equal, found, wanted))
    assert any(name.startswith("tflabench.chunkwise") and "backward" not in name for name in seen), seen
    assert look != "mode" or any("chunkwise_backward" in name for name in seen), seen


def test_what_runs_is_remembered_by_all_that_it_follows_from(monkeypatch, probe):
    """Sizes, dtype, gate, and whether there will be a backward; and not for ever."""
    asked: list[tuple[Any, ...]] = []

    def default_chunk_size(q: Tensor, v: Tensor, *, gate: Any, backward: bool) -> int:
        asked.append((*q.shape, *v.shape, q.dtype, gate, backward))
        return 32

    made = probe.kernels()._replace(default_chunk_size=default_chunk_size)
    monkeypatch.setitem(FAMILIES["scalar"].kernels, "probe", lambda: made)
    x = {name: y.detach() for name, y in inputs(MLSTM_SIG).items()}
    calls: list[tuple[dict[str, Any], Any]] = [
        (x, MLSTM_SIG), ({name: y[:, :, 1:] for name, y in x.items()}, MLSTM_SIG),
        (x | {"v": x["v"][..., :16]}, MLSTM_SIG), ({name: y.half() for name, y in x.items()}, MLSTM_SIG),
        (x | {"q": x["q"].clone().requires_grad_()}, MLSTM_SIG), (x, replace(MLSTM_SIG, temperature=2.0)),
        (x, replace(MLSTM_SIG, input="exp")),
    ]  # fmt: skip
    for _ in range(2):
        for given, gate in calls:
            api.chunkwise(**given, gate=gate, implementation=PROBE)
    assert len(asked) == len(set(asked)) == len(calls)
    monkeypatch.setattr(chunkwise_operator, "MOST", 3)
    for given, gate in calls:
        api.chunkwise(**given, gate=gate, implementation=PROBE)
        assert len(chunkwise_operator._resolved) <= len(calls)
    api.chunkwise(**{name: y[:, :, 2:] for name, y in x.items()}, gate=MLSTM_SIG, implementation=PROBE)
    assert len(chunkwise_operator._resolved) == 1


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


def test_a_last_state_that_is_not_used_has_no_gradient(probe):
    x = inputs()
    h, last = api.chunkwise(**x, gate=MLSTM_EXP, implementation=PROBE, return_last_state=True)
    h.sum().backward(retain_graph=True)
    assert probe.d_last == [None]
    last.C.sum().backward()
    assert probe.d_last[1].C.equal(torch.ones_like(last.C))
    assert probe.d_last[1].n is None


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
    "mlstm_exp": lambda q, k, v, f, **options: ops.mlstm_exp(q, k, v, f, f, **options),
    "gated_retention": lambda q, k, v, f, **options: ops.gated_retention(q, k, v, f, **options),
    "lightning_attention": lambda q, k, v, f, **options: ops.lightning_attention(q, k, v, f[0, :, 0].exp(), **options),
    "mamba2_ssd": lambda q, k, v, f, **options: ops.mamba2_ssd(
        v, f, -f[0, :, 0].exp(), k[:, :1], q[:, :1], dt_softplus=True, **options
    ),
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS.keys())
def test_compiles_for_sizes_that_change(probe, operation):
    """With dynamic=True every size and float is a symbol; no length asks for another graph than the first."""
    count, graphs = CompileCounterWithBackend("aot_eager"), []
    compiled = torch.compile(operation, fullgraph=True, backend=count, dynamic=True)
    for steps in (20, 33, 40):
        x = [torch.randn(B, H, steps, d) for d in (D_QK, D_QK, D_HV)]
        f = torch.randn(B, H, steps)
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
    def forward(arguments, options):
        return torch.full_like(arguments.v, options.chunk_size), None, (arguments.v.new_ones(3),)

    sizes = {True: 32, False: 64}
    made = probe.kernels()._replace(forward=forward, default_chunk_size=lambda q, v, *, gate, backward: sizes[backward])
    monkeypatch.setitem(FAMILIES["scalar"].kernels, "probe", lambda: made)
    call = torch.compile(ops.mlstm_sig, fullgraph=True, backend="aot_eager") if compiled else ops.mlstm_sig
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
    assert (ops.mlstm_sig(**x, implementation=PROBE, chunk_size=16) == 16).all()


def test_forward_may_cut_otherwise_only_where_the_chunk_size_is_that_of_a_backward(monkeypatch, probe):
    asked = []

    def forward(arguments, options):
        asked.append(options.cut_freely)
        return torch.zeros_like(arguments.v), None, (arguments.v.new_ones(3),)

    made = probe.kernels()._replace(forward=forward)
    monkeypatch.setitem(FAMILIES["scalar"].kernels, "probe", lambda: made)
    x = inputs(MLSTM_SIG)
    ops.mlstm_sig(**x, implementation=PROBE)
    ops.mlstm_sig(**x, implementation=PROBE, chunk_size=16)
    with torch.no_grad():
        ops.mlstm_sig(**x, implementation=PROBE)
    assert asked == [True, False, False]


@pytest.mark.parametrize(("kernels", "ranges"), [(hopper, 3), (tfla, 1)], ids=["hopper", "tfla"])
def test_a_length_is_no_reason_to_compile_again(monkeypatch, probe, kernels, ranges):
    """As far as the choice of a chunk size goes: from 1024 to 8192 steps once for each power of two at most."""
    monkeypatch.setattr(hopper, "refuses", lambda *args, **options: None)

    def forward(arguments, options):
        return torch.full_like(arguments.v, options.chunk_size), None, (arguments.v.new_ones(3),)

    made = probe.kernels()._replace(forward=forward, default_chunk_size=kernels.default_chunk_size)
    monkeypatch.setitem(
        FAMILIES["scalar"].kernels, "probe", lambda: made._replace(refuses=lambda *args, **options: None)
    )
    count, graphs = CompileCounterWithBackend("eager"), set()
    compiled = torch.compile(ops.mlstm_sig, fullgraph=True, backend=count, dynamic=True)
    for steps in range(1050, 8000, 333):
        q, v, f = torch.ones(1, 4, steps, 128), torch.ones(1, 4, steps, 256), torch.ones(1, 4, steps)
        L = compiled(q, q, v, f, f, implementation=PROBE).flatten()[0]
        assert kernels.default_chunk_size(q, v, gate=MLSTM_SIG, backward=False) == L
        graphs.add(count.frame_count)
    assert len(graphs) == ranges


@pytest.mark.parametrize("chunk_size", ["auto", 1024])
def test_any_length_has_the_first_graph(monkeypatch, probe, chunk_size):
    """Of fewer steps than a chunk and more: what the Triton kernels say before they run asks for no length."""

    def forward(arguments, options):
        return torch.zeros_like(arguments.v), None, tfla.empty_saved(arguments.q, arguments.v, options)

    made = tfla.kernels(2)._replace(forward=forward)
    monkeypatch.setitem(FAMILIES["scalar"].kernels, "probe", lambda: made)
    count = CompileCounterWithBackend("eager")
    compiled = torch.compile(ops.mlstm_exp, fullgraph=True, backend=count, dynamic=True)
    for steps in (17, 40, 100, 164, 300):
        x = torch.ones(1, 2, steps, 16)
        compiled(x, x, x, x[..., 0], x[..., 0], implementation=PROBE, chunk_size=chunk_size)
    assert count.frame_count == 1


@pytest.mark.parametrize("operation", [ops.mlstm_exp, ops.gla])
def test_any_length_has_the_first_graph_of_the_reference(operation):
    """Of fewer steps than a chunk and more, forward and backward."""
    count, graphs = CompileCounterWithBackend("aot_eager"), set[int]()
    compiled = torch.compile(operation, fullgraph=True, backend=count, dynamic=True)
    for steps in (17, 40, 164):
        q, k, v = (torch.randn(1, 2, steps, 16, requires_grad=True) for _ in range(3))
        gates = (-q.detach().abs(),) if operation is ops.gla else (q.detach()[..., 0], q.detach()[..., 1])
        h, wanted = compiled(q, k, v, *gates), operation(q, k, v, *gates)
        assert h.equal(wanted)
        for x in zip(*(torch.autograd.grad(y.square().sum(), (q, k, v)) for y in (h, wanted)), strict=True):
            torch.testing.assert_close(*x)
        graphs.add(count.frame_count)
    assert len(graphs) == 1


@pytest.mark.parametrize("operation", [ops.simple_gla, ops.gla])
def test_an_exported_program_runs_other_lengths(operation):
    class Layer(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
            return operation(q, k, v, g)

    def drawn(steps: int) -> tuple[Tensor, ...]:
        q, k, v = (torch.randn(1, 2, steps, 16) for _ in range(3))
        return q, k, v, -q.abs() if operation is ops.gla else -q[..., 0].abs()

    length = torch.export.Dim("T", min=2, max=512)
    exported = torch.export.export(Layer(), drawn(20), dynamic_shapes=({2: length},) * 4).module()
    for steps in (2, 130):
        x = drawn(steps)
        assert exported(*x).equal(operation(*x))


def test_triton_kernels_are_opaque_to_torch():
    """As the probe, on a short sequence: interpreted kernels are slow."""
    implementation, gate = "tfla_xl", MLSTM_EXP
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = {n: t[:1, :, :20].detach().to(device).requires_grad_() for n, t in inputs(gate).items()}
    key = setup_key(implementation, "scalar", gate.fields, torch.float32, None)
    arguments = (*(x[n] for n in "qkvfi"), None, None, None, 0.25, 1.0, 16, False, key, None, True, None)
    torch.library.opcheck(torch.ops.tflabench.chunkwise, arguments)
    compiled = torch.compile(api.chunkwise, fullgraph=True, backend="aot_eager")
    options = {"gate": gate, "chunk_size": 16}
    found = results(compiled, x, None, implementation=implementation, **options)
    assert_close(found, results(api.chunkwise, x, None, implementation="reference", **options))
    torch._dynamo.reset()


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
            first = args[0][0] if isinstance(args[0], tuple) else args[0]
            assert [x.shape for x in self.tensors] == [first.shape]
            return function(*args, **options)

        return checked


def test_kernels_run_with_their_device_as_the_current_one(probe, monkeypatch):
    """Triton launches on the current device, which need not be that of the tensors."""
    current = Current(monkeypatch)
    kernels = probe.kernels()
    guarded = kernels._replace(forward=current.kept_by(kernels.forward), backward=current.kept_by(kernels.backward))
    monkeypatch.setitem(FAMILIES["scalar"].kernels, "probe", lambda: guarded)
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

    monkeypatch.setattr(decode, "step", current.kept_by(lambda given, *others, **options: torch.empty_like(given.v)))
    q, v, gate = torch.randn(B, H, D_QK), torch.randn(B, H, D_HV), torch.randn(B, H)
    key = setup_key("triton", "scalar", MLSTM_EXP.fields, torch.float32, None)
    state = (torch.zeros(B, H, D_QK, D_HV), None, None, None, None, None)
    torch.ops.tflabench.step(q, q, v, gate, gate, *state, 1.0, 1.0, key)
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
