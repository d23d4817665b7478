"""Kernels that get the state to start from between making states and reading them compute as if they had it before.

On a CPU they run in Triton's interpreter, on a GPU the fused ones do too.
"""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor

from tflabench import ops
from tflabench.kernels.backends import kernels_of
from tflabench.kernels.common.contract import Arguments, KernelOptions
from tflabench.kernels.state import State, zero_state

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = [pytest.mark.gpu] if DEVICE == "cuda" else []
GATES = {"exp": ops.MLSTM_EXP, "sig": ops.MLSTM_SIG, "gla": ops.GLA, "gdn": ops.GATED_DELTA_NET, "kda": ops.KDA}
TRITON = [("tfla_xl" if name in ("exp", "sig") else "tfla", name) for name in GATES]
OF_CPU = [(*of, 16) for of in TRITON if of[1] != "sig"]
OF_GPU = [(*of, 64) for of in TRITON] + [
    ("hopper", name, L)
    for name in ("sig", "gla", "gdn", "kda")
    for L in (256, 1024)  # segments, and one
]


def draw(gate: Any, name: str) -> tuple[Arguments, Tensor, State, State]:
    """Return a call without a state, dh, a state and the gradient of one."""
    B, H, T, d_qk, d_hv = (1, 2, 1024, 128, 256) if DEVICE == "cuda" else (1, 1, 24, 16, 16)
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    torch.manual_seed(0)

    def of(*shape: int) -> Tensor:
        return torch.randn(B, H, T, *shape, device=DEVICE)

    q, k, v, dh = (x.to(dtype) for x in (of(d_qk), torch.nn.functional.normalize(of(d_qk), dim=-1), of(d_hv), of(d_hv)))
    f = of() + 4 if name in ("exp", "sig") else -0.05 * (of() if name == "gdn" else of(d_qk)).abs()
    i = None if name == "gla" else of() if name in ("exp", "sig") else of().sigmoid()
    zero = zero_state(gate, B, H, d_qk, d_hv, device=torch.device(DEVICE), dtype=torch.float32)
    start, d_last = (State(*(cast("Any", x if x is None else torch.randn_like(x)) for x in zero)) for _ in range(2))
    return Arguments(q, k, v, f, i), dh, start, d_last._replace(m=None)


def close(ours: Tensor | None, other: Tensor | None) -> bool:
    if ours is None or other is None:
        return ours is other
    difference = (ours.double() - other.double()).norm() / other.double().norm().clamp(min=1e-9)
    return bool(difference < (1e-2 if DEVICE == "cuda" else 1e-5))


@pytest.mark.parametrize(("implementation", "name", "L"), OF_GPU if DEVICE == "cuda" else OF_CPU)
def test_a_state_may_come_between_states_and_outputs(implementation: str, name: str, L: int) -> None:
    gate = GATES[name]
    kernels, (call, dh, start, d_last) = kernels_of(gate.family, implementation), draw(gate, name)
    if reason := kernels.refuses(call.q, call.v, gate=gate, chunk_size=L):
        pytest.skip(reason)
    assert kernels.exchanges(gate)
    options, resumed = KernelOptions(gate, 0.1, L), call._replace(initial=start)
    given: list[State] = []

    def exchange(returned: State) -> Any:
        def exchanged(state: State) -> State:
            given.append(state)
            return returned

        return options._replace(exchange=exchanged)

    with torch.no_grad():
        end = kernels.forward(call, options)[1]
        h, last, kept = kernels.forward(resumed, options)
        d_start = kernels.backward(dh, None, resumed, kept, options)[5]
        gradients = kernels.backward(dh, d_last, resumed, kept, options)
        ours = kernels.forward(call, exchange(start))
        of_ours = kernels.backward(dh, None, resumed, ours[2], exchange(d_last))
    assert end is not None
    assert last is not None
    assert ours[1] is not None
    assert close(given[0].C, end.C)
    assert close(given[0].n, end.n)
    assert close(given[1].C, d_start)
    assert close(ours[0], h)
    assert [close(x, y) for x, y in zip(ours[1], last, strict=True)] == [True] * 3
    names = "dq", "dk", "dv", "df", "di", "dC", "dn"
    assert [n for n, x, y in zip(names, of_ours, gradients, strict=True) if not close(x, y)] == []
