"""The fused kernel for dk and dv without a GPU: its algebra against the two walks, and what it compiles to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
from test_hopper_compile import emulate_walk, tiles_of, walk_tiles

from tflabench.kernels.hopper.exponents import TILE, Exponents
from tflabench.kernels.hopper.launch import Checkpoints, Segments
from tflabench.kernels.hopper.walk import WINDOW

ROOT = Path(__file__).parents[1]
OLD_TRITON = Path(os.environ.get("TFLABENCH_OLD_TRITON", ".triton-3.6.0"))
SHARED_BYTES = 232_448
SPILLED_BYTES = 512  # stores and loads, of what is used once a tile or once a segment


def emulate_pair(
    q: Tensor, k: Tensor, v: Tensor, dh: Tensor, dk: Tensor, dv: Tensor, exponents: Exponents, cut: Segments, *,
    sums: Tensor, checkpoints: Checkpoints, first: Tensor | None = None, last: Tensor | None = None,
) -> None:  # fmt: skip
    """pair.py in PyTorch."""
    T = q.shape[2]
    Q, K, V, dH = map(tiles_of, (q, k, v, dh))
    dK, dV, kdk = (torch.full_like(x, torch.nan) for x in (K, V, K[..., 0]))
    x, y = (e.double().unflatten(2, (-1, TILE)) for e in (exponents.x, exponents.y))
    keep = torch.ones(TILE, TILE, dtype=torch.bool).triu()  # [j, i]
    for segment in range(cut.count):
        dC = Q.new_zeros(*Q.shape[:2], Q.shape[-1], V.shape[-1])
        if first is not None:
            dC = first.reshape(*dC.shape[:2], cut.count, *dC.shape[2:])[:, :, segment].double()
        for t in walk_tiles(cut, segment, reverse=True):
            if (t + 1) % WINDOW.value == 0 and t + 1 < cut.tiles:
                window = (t + 1) // WINDOW.value - 1
                kept = checkpoints.states[0, 0, :, :, window, : dC[0, 0].numel()].view(dC.shape)
                checkpoints.dots[:, :, :, window] = 0
                checkpoints.dots[0, :, :, window] = (kept * dC).sum((-2, -1))
            g = exponents.g.double()[:, :, t, None]
            D = (y[:, :, t, :, None] + x[:, :, t, None, :]).masked_fill(~keep, -torch.inf).exp2()
            r = (y[:, :, t] + g).exp2()[..., None]
            scores = K[:, :, t] @ Q[:, :, t].mT
            dP = V[:, :, t] @ dH[:, :, t].mT * D
            across = r * (K[:, :, t] @ dC)
            dK[:, :, t] = dP @ Q[:, :, t] + r * (V[:, :, t] @ dC.mT)
            dV[:, :, t] = (scores * D) @ dH[:, :, t] + across
            kdk[:, :, t] = (dP * scores).sum(-1) + (V[:, :, t] * across).sum(-1)
            dC = g[..., None].exp2() * dC + (x[:, :, t].exp2()[..., None] * Q[:, :, t]).mT @ dH[:, :, t]
        if last is not None:
            last.reshape(*dC.shape[:2], cut.count, *dC.shape[2:])[:, :, segment] = dC
    dk.copy_(dK.flatten(2, 3)[:, :, :T])
    dv.copy_(dV.flatten(2, 3)[:, :, :T])
    sums.copy_(kdk.flatten(2, 3)[:, :, :T])


@pytest.mark.parametrize(("T", "chunk_size"), [(200, 256), (330, 128), (2100, 2176)])
def test_one_walk_computes_what_two_do(T: int, chunk_size: int) -> None:
    torch.manual_seed(T)
    B, H, d_qk, d_hv = 1, 2, 16, 64
    q, k, v, dh = (torch.randn(B, H, T, d) for d in (d_qk, d_qk, d_hv, d_hv))
    cut = Segments(T, chunk_size)
    log_f = torch.nn.functional.pad(-torch.rand(B, H, T) / 4, (0, -T % TILE)).unflatten(2, (-1, TILE))
    b = log_f.cumsum(-1)
    y = (torch.randn_like(b) - b).flatten(2)
    y[:, :, T:] = -torch.inf
    exponents = Exponents(b.flatten(2), y, log_f.sum(-1))
    first = torch.randn(B, H, cut.count, d_qk, d_hv)
    checkpoints = Checkpoints.of(q, d_hv)
    checkpoints.states.normal_()
    checkpoints.dots.zero_()

    def empty() -> tuple[Tensor, ...]:
        return torch.empty_like(k), torch.empty_like(v), torch.empty(1, B, H, T), torch.empty(B, H, d_qk, d_hv)

    dk, dv, sums, last = empty()
    only_last = {"last": last} if cut.count == 1 else {}
    walk: dict[str, Any] = {"reverse": True, "first": first}
    emulate_walk(
        v, dh, q, dk, exponents, cut, transposed=False, x=k, sums=sums, checkpoints=checkpoints, **walk, **only_last
    )
    emulate_walk(k, q, dh, dv, exponents, cut, transposed=True, **walk)
    wanted = [dk, dv, sums[0], checkpoints.dots.clone(), *only_last.values()]

    checkpoints.dots.zero_()
    dk, dv, sums, last = empty()
    only_last = {"last": last} if cut.count == 1 else {}
    emulate_pair(q, k, v, dh, dk, dv, exponents, cut, sums=sums[0], checkpoints=checkpoints, first=first, **only_last)
    for got, x in zip((dk, dv, sums[0], checkpoints.dots, *only_last.values()), wanted, strict=True):
        torch.testing.assert_close(got, x, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module", params=["oldest", "installed"])
def compiled(request: pytest.FixtureRequest) -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    if request.param == "oldest":
        old = ROOT / OLD_TRITON
        if not (old / "triton").is_dir():
            pytest.skip(f"no Triton in {old}: `make test` puts the oldest supported there")
        environment["PYTHONPATH"] = str(old)
    command = [sys.executable, "-P", str(ROOT / "tests" / "compile_hopper_pair.py")]
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [environment.get("PYTHONPATH"), str(ROOT / "tests")])
    )  # -P leaves the script's folder out
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert (request.param == "oldest") == (found["triton"] == "3.6.0")
    return found


def test_pair_fits_the_chip(compiled: dict[str, Any]) -> None:
    for kernel in compiled["kernels"]:
        assert kernel["shared_bytes"] <= SHARED_BYTES, kernel
        assert kernel["spilled_bytes"] <= SPILLED_BYTES, kernel
        if compiled["triton"] == "3.6.0":  # C75xx: ptxas serialises products; that of newer ones does
            assert not kernel["warnings"], kernel
