"""Times of 64 documents of random lengths end to end, 65,536 tokens, bfloat16, in ms: 10th percentile and median.

`python tests/support/documents_times.py [IMPLEMENTATION [OPERATION ...]]`: each case queues behind a GPU that sleeps,
so that no time is the host's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from tflabench import ops

T, DOCUMENTS, SLEEP = 65_536, 64, 20_000_000
SHAPES = ((16, 128, 256), (8, 256, 512), (64, 64, 64))  # heads, d_qk, d_hv
OPERATIONS: dict[str, Any] = {"sig": ops.mlstm_sig, "exp": ops.mlstm_exp, "gla": ops.gla}


def offsets(seed: int) -> torch.Tensor:
    inner = torch.randperm(T - 1, generator=torch.Generator().manual_seed(seed))[: DOCUMENTS - 1] + 1
    return torch.tensor([0, *inner.sort().values.tolist(), T])


def timed(run: Callable[[], object], samples: int) -> str:
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    times: list[float] = []
    for _ in range(samples):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(SLEEP)  # type: ignore[attr-defined]
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    times.sort()
    return f"{times[samples // 10]:.3f} {times[samples // 2]:.3f}"


def measure(name: str, implementation: str, H: int, d_qk: int, d_hv: int) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, H, T, d, device="cuda", dtype=torch.bfloat16) for d in (d_qk, d_qk, d_hv))
    i, f = torch.randn(1, H, T, device="cuda"), torch.randn(1, H, T, device="cuda") + 5
    gates = [-torch.rand(q.shape, device="cuda", dtype=torch.bfloat16)] if name == "gla" else [i, f]
    leaves, dh = [x.requires_grad_() for x in (q, k, v, *gates)], torch.randn_like(v)
    C = torch.randn(DOCUMENTS, H, d_qk, d_hv, device="cuda")
    start = ops.State(C, C[..., 0].contiguous(), C[:, :, 0, 0].contiguous()) if name == "exp" else ops.State(C)
    known = offsets(2)
    cases: dict[str, dict[str, Any]] = {
        "one sequence": {"cu_seqlens": known.cuda()},
        "documents": {"cu_seqlens": known},
        "states in": {"cu_seqlens": known, "initial_state": start},
        "states in and out": {"cu_seqlens": known, "initial_state": start, "return_last_state": True},
    }
    dC = torch.randn_like(C)
    for case, options in cases.items():

        def forward(options: dict[str, Any] = options) -> torch.Tensor:
            found = OPERATIONS[name](*leaves, implementation=implementation, **options)
            return found[0] if isinstance(found, tuple) else found

        with torch.no_grad():
            alone = timed(forward, 20)
        training = timed(lambda forward=forward: torch.autograd.grad(forward(), leaves, dh), 10)
        print(f"{name} {H}x{d_qk}/{d_hv} {case:18} forward {alone}  with backward {training}", flush=True)

    def of_states() -> Any:
        h, last = OPERATIONS[name](*leaves, implementation=implementation, **cases["states in and out"])
        return torch.autograd.grad([h, last.C], [*leaves, C], [dh, dC])

    C.requires_grad_()
    print(f"{name} {H}x{d_qk}/{d_hv} and gradients of them      with backward {timed(of_states, 10)}", flush=True)
    torch.cuda.empty_cache()


if __name__ == "__main__":
    for sizes in SHAPES:
        for operation in sys.argv[2:] or ("sig", "exp"):
            measure(operation, sys.argv[1] if sys.argv[1:] else "auto", *sizes)
