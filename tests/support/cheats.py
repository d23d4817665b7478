"""Kernels of the mLSTM that look fast or right and are not, and what the bench says of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tflabench.bench import measure
from tflabench.bench.comparison_run import PointRun
from tflabench.bench.protocol import SHORT
from tflabench.bench.timing import SURE
from tflabench.bench.worker import Worker
from tflabench.implementations import registry
from tflabench.implementations.adapter import Implementation
from tflabench.implementations.mlstm import GATES
from tflabench.kernels.scalar import reference
from tflabench.plugin import mlstm_kernel
from tflabench.problem import Problem
from tflabench.selection.points import Point

TAKE_TURN = measure.take_turn


class WorkClock:
    """A clock that what is computed moves on, whatever the machine does: a millisecond a result, 0.1 ms a look."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        self.seconds += 1e-4
        return self.seconds


CLOCK = WorkClock()


def right(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> Tensor:
    """(B, H, T, d_hv), as the operation has it."""
    CLOCK.seconds += 1e-3
    return reference.chunkwise(q, k, v, f, i, gate=GATES["sig"], chunk_size=64)[0]


def memoises(*inputs: Tensor, seen: dict[Any, Tensor] = {}) -> Tensor:  # noqa: B006  it is the cheat
    key = tuple(x.data_ptr() for x in inputs)
    if key not in seen:
        seen[key] = right(*inputs)
    return seen[key]


def memoises_values(*inputs: Tensor, seen: dict[Any, Tensor] = {}) -> Tensor:  # noqa: B006
    """By pointers and a few values, so that no result is wrong; what it computes takes long."""
    key = tuple((x.data_ptr(), *x.flatten()[:8].tolist()) for x in inputs)
    if key not in seen:
        for _ in range(20):
            seen[key] = right(*inputs)
    return seen[key]


def leaves_early(*inputs: Tensor, last: dict[str, Any] = {}) -> Tensor:  # noqa: B006
    """Compute three times for the same pointers, then no more."""
    key = inputs[0].data_ptr()
    if last.get("key") != key:
        last.update(key=key, calls=0)
    last["calls"] += 1
    if last["calls"] <= 3:
        last["h"] = right(*inputs)
    return last["h"]


def in_bfloat16(*inputs: Tensor) -> Tensor:
    return right(*(x.bfloat16() for x in inputs)).to(inputs[0].dtype)


def returns_bfloat16(*inputs: Tensor) -> Tensor:
    return right(*(x.bfloat16() for x in inputs))


def returns_float64(*inputs: Tensor) -> Tensor:
    return right(*inputs).double()


def wipes_v(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> Tensor:
    return 0 * right(q, k, v.data.zero_() + v, i, f)


def scales_q(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> Tensor:
    q.data.mul_(0.5)
    return right(q, k, v, i, f)


def computes_in_place(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> Tensor:
    h = right(q, k, v, i, f)
    v.data.copy_(h.detach())
    return v + (h - h.detach())


class Altered(torch.autograd.Function):
    """h and its gradients, each through a function of the name of an input and its gradient."""

    @staticmethod
    def forward(ctx: Any, alter: Callable[[str, Tensor], Tensor | None], *inputs: Tensor) -> Tensor:
        ctx.alter = alter
        ctx.save_for_backward(*inputs)
        return right(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        leaves = [x.detach().requires_grad_() for x in ctx.saved_tensors]
        with torch.enable_grad():
            gradients = torch.autograd.grad(right(*leaves), leaves, grads[0])
        return None, *(ctx.alter(name, grad) for name, grad in zip("qkvif", gradients, strict=True))


def edits_v_backward(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> Tensor:
    def alter(name: str, grad: Tensor) -> Tensor:
        if name == "v":
            v.data.zero_()
        return grad

    return Altered.apply(alter, q, k, v, i, f)


def drops_a_gradient(*inputs: Tensor) -> Tensor:
    return Altered.apply(lambda name, grad: None if name == "k" else grad, *inputs)


def zeroes_a_gradient(*inputs: Tensor) -> Tensor:
    return Altered.apply(lambda name, grad: 0 * grad if name == "f" else grad, *inputs)


def gradient_of_the_first_call(*inputs: Tensor, first: dict[Any, Tensor] = {}) -> Tensor:  # noqa: B006
    key = inputs[0].data_ptr()
    return Altered.apply(lambda name, grad: first.setdefault((key, name), grad), *inputs)


def one_slice_of_many(*inputs: Tensor) -> Tensor:
    h = right(*inputs)
    h[-1, 1] = 0
    return h


def gradient_after_the_cut(*inputs: Tensor) -> Tensor:
    def alter(name: str, grad: Tensor) -> Tensor:
        keep = torch.ones(grad.shape[2], device=grad.device)
        keep[512:] = 0
        return grad * (keep[:, None] if grad.dim() == 4 else keep)

    return Altered.apply(alter, *inputs)


def _zeros(dim: int, part: Callable[[int], slice]) -> Callable[..., Tensor]:
    def compute(*inputs: Tensor) -> Tensor:
        keep = torch.ones(inputs[2].shape[dim], device=inputs[2].device)
        keep[part(len(keep))] = 0
        return right(*inputs) * keep.reshape([-1 if each == dim else 1 for each in range(4)])

    return compute


def on_another_stream(*inputs: Tensor) -> Tensor:
    """On a GPU: what is timed is the current stream, which does not wait for it."""
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(20):
            h = right(*inputs)
    return h


@dataclass(frozen=True)
class Cheat:
    """A kernel, and what a row of it says.

    Attributes:
        status, reason: of the row, a part of the reason.
        backward: whether it cheats with gradients, and not without.
        gpu: whether it needs a GPU.
    """

    compute: Callable[..., Tensor]
    status: str
    reason: str
    backward: bool = False
    gpu: bool = False

    @property
    def implementation(self) -> Implementation:
        """The kernel as the bench measures it."""
        name = next(name for name, cheat in CHEATS.items() if cheat is self)
        return mlstm_kernel(name, self.compute, gate="sig")


CHEATS = {
    "memoises": Cheat(memoises, "wrong", "forward is off by"),
    "memoises_values": Cheat(memoises_values, "wrong", "with values that it has not seen: it remembers results"),
    "leaves_early": Cheat(leaves_early, "wrong", "not repeatable: forward"),
    "in_bfloat16": Cheat(in_bfloat16, "wrong", "forward is off by 0.00"),
    "returns_bfloat16": Cheat(returns_bfloat16, "error", "the output is bfloat16: it must be float32"),
    "returns_float64": Cheat(returns_float64, "error", "the output is float64: it must be float32"),
    "wipes_v": Cheat(wipes_v, "wrong", "changes its input v"),
    "scales_q": Cheat(scales_q, "wrong", "changes its input q"),
    "computes_in_place": Cheat(computes_in_place, "wrong", "changes its input v"),
    "edits_v_backward": Cheat(edits_v_backward, "wrong", "changes its input v", backward=True),
    "drops_a_gradient": Cheat(drops_a_gradient, "error", "not have been used in the graph", backward=True),
    "zeroes_a_gradient": Cheat(zeroes_a_gradient, "wrong", "df is off by 1", backward=True),
    "gradient_of_the_first_call": Cheat(gradient_of_the_first_call, "wrong", "dq is off by", backward=True),
    "half_the_heads": Cheat(_zeros(1, lambda heads: slice(heads // 2, heads)), "wrong", "forward is off by 1"),
    "middle_heads": Cheat(_zeros(1, lambda heads: slice(2, heads - 2)), "wrong", "all of forward is off by"),
    "middle_batch": Cheat(_zeros(0, lambda batch: slice(1, batch - 1)), "wrong", "all of forward is off by"),
    "one_slice_of_many": Cheat(one_slice_of_many, "wrong", "all of forward is off by"),
    "gradient_after_the_cut": Cheat(gradient_after_the_cut, "wrong", "all of dv is off by", backward=True),
    "steps_after_the_cut": Cheat(_zeros(2, lambda steps: slice(512, steps)), "wrong", "all of forward is off by"),
    "on_another_stream": Cheat(on_another_stream, "error", "works on a stream that the current one", gpu=True),
}
SMALL = Problem(4, 6, 40, 16, 16, dtype="float32")
QUICK = asdict(SHORT.brief) | {"min_samples": 5, "warmup_iterations": 2}


def problem_of(name: str) -> Problem:
    """Return a problem of which a cheat gets something wrong."""
    steps = 700 if "cut" in name else 40
    if name == "memoises_values":  # turns draw their values from 2,804 orders of so many steps, not from 20
        steps = 701
    return SMALL.with_(pass_="fwbw" if CHEATS[name].backward else "fw", seq_len=steps)


def measured(impl: Implementation, problem: Problem, monkeypatch: Any, device: str = "cpu") -> dict[str, Any]:
    """The columns of the row of a point that was prepared and had its turns, on a CPU by the `WorkClock`."""
    monkeypatch.setattr(registry, "_plugged", [impl])
    if device == "cpu":
        monkeypatch.setattr(measure, "take_turn", partial(TAKE_TURN, now=CLOCK.now))
    answers: list[dict[str, Any]] = []
    worker = Worker(device, answers.append)
    worker.start([], None)
    run = PointRun(Point(impl, problem), "shared", alone=False)
    job = {"implementation": impl.name, "problem": asdict(problem)}
    worker.do({"kind": "prepare", "verify_s": 0.0, **job})
    run.prepared(answers[-1]["result"])
    for _ in range(SURE):
        if run.state == "over":
            break
        worker.do({"kind": "turn", "protocol": QUICK, **job})
        run.sampled(answers[-1]["result"])
    return run.columns
