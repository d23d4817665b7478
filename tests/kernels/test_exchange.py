"""Kernels that get the state to start from between making states and reading them compute as if they had it before.

On a CPU they run in Triton's interpreter, the fused ones by a model of the machine (gluon_on_cpu.py).
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
FUSED = [("hopper", name, L) for name in ("sig", "gla", "gdn", "kda") for L in (64, 1024)]  # segments, and one
CASES = [(*of, 16) for of in TRITON if DEVICE == "cuda" or of[1] != "sig"] + FUSED[2 * (DEVICE == "cpu") :]


def draw(gate: Any, name: str, fused: bool) -> tuple[Arguments, Tensor, State, State]:
    """Return a call without a state, dh, a state and the gradient of one."""
    B, H, T, d_qk, d_hv = (1, 2, 1000, 128, 256) if DEVICE == "cuda" else (1, 1, 130 if fused else 24, 16, 16)
    dtype = torch.bfloat16 if DEVICE == "cuda" or fused else torch.float32
    torch.manual_seed(0)

    def of(*shape: int) -> Tensor:
        return torch.randn(B, H, T, *shape, device=DEVICE)

    q, k, v, dh = (x.to(dtype) for x in (of(d_qk), torch.nn.functional.normalize(of(d_qk), dim=-1), of(d_hv), of(d_hv)))
    f = of() + 4 if name in ("exp", "sig") else -0.05 * (of() if name == "gdn" else of(d_qk)).abs()
    i = None if name == "gla" else of() if name in ("exp", "sig") else of().sigmoid()
    zero = zero_state(gate, B, H, d_qk, d_hv, device=torch.device(DEVICE), dtype=torch.float32)
    start, d_last = (State(*(cast("Any", x if x is None else torch.randn_like(x)) for x in zero)) for _ in range(2))
    return Arguments(q, k, v, f, i), dh, start, d_last._replace(m=None)


def differ(ours: Tensor | None, other: Tensor | None, within: float) -> bool:
    if ours is None or other is None:
        return ours is not other
    difference = (ours.double() - other.double()).norm() / other.double().norm().clamp(min=1e-9)
    return not bool(difference < within)


@pytest.mark.parametrize(("implementation", "name", "L"), CASES)
def test_a_state_may_come_between_states_and_outputs(
    implementation: str, name: str, L: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, fused = GATES[name], implementation == "hopper"
    if fused and DEVICE == "cpu":
        pytest.importorskip("triton.experimental.gluon")
        from gluon_on_cpu import DELTA, GLA, KDA, Machine, launch_delta_on, launch_gla_on

        launch = launch_gla_on if name == "gla" else launch_delta_on
        launch(Machine(seed=1, family={"gla": GLA, "gdn": DELTA, "kda": KDA}[name]), monkeypatch)
    kernels, (call, dh, start, d_last) = kernels_of(gate.family, implementation), draw(gate, name, fused)
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
    names = "end C", "end n", "start dC", "h", "C", "n", "m", "dq", "dk", "dv", "df", "di", "dC", "dn"
    found = given[0].C, given[0].n, given[1].C, ours[0], *ours[1], *of_ours
    wanted = end.C, end.n, d_start, h, *last, *gradients
    within = 1e-5 if call.v.dtype == torch.float32 else 1e-2
    assert [n for n, x, y in zip(names, found, wanted, strict=True) if differ(x, y, within)] == []
