"""What states that h writes down do to gate gradients: simulates the roundings of the fused kernels on a CPU.

    python tests/support/kept_states.py [T ...]

df is a sum over the later steps of q . dq - k . dk. This computes its part that passes whole tiles, in float32 with the
operands rounded to bfloat16 as the kernels round them, and prints its error against float64, and that of df if it were
the only one: with states of a pass, with segments of 128 tiles that start from states of h, and with these if the sums
start anew, from <C, dC>, in every segment.
docs/decisions/2026-11-25-kept-states.md.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import torch
from torch import Tensor

TILE, SEGMENT, D_QK, D_HV = 64, 128, 128, 256


class Tiles(NamedTuple):
    """Tiles of one head: q, k, v, dh (tiles, 64, d), log gates, decays from the start and to the end, and of tiles."""

    q: Tensor
    k: Tensor
    v: Tensor
    dh: Tensor
    log_f: Tensor
    log_i: Tensor
    query_decay: Tensor
    key_decay: Tensor
    decay: Tensor


def draw(T: int, mean: float, seed: int) -> Tiles:
    g = torch.Generator().manual_seed(seed)
    count = T // TILE
    q, k, dh, v = (rounded(torch.randn(count, TILE, d, generator=g)) for d in (D_QK, D_QK, D_HV, D_HV))
    log_f = torch.nn.functional.logsigmoid(torch.randn(count, TILE, generator=g) + mean)
    log_i = torch.nn.functional.logsigmoid(torch.randn(count, TILE, generator=g))
    b = log_f.cumsum(1)
    return Tiles(q, k, v, dh, log_f, log_i, b.exp() * D_QK**-0.5, (b[:, -1:] - b + log_i).exp(), b[:, -1].exp())


def rounded(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def weighted(x: Tensor, decay: Tensor) -> Tensor:
    return rounded(decay[:, None] * x)


def states(x: Tiles, of_h: bool) -> list[Tensor]:
    """C before every tile; of h with segments that start from its states, which a walk for dq goes on from."""
    found, of_walk, written = [], torch.zeros(D_QK, D_HV), torch.zeros(D_QK, D_HV)
    for n, (k, v, decay) in enumerate(zip(x.k, x.v, x.key_decay, strict=True)):
        if of_h and n % SEGMENT == 0:
            of_walk = written
        found.append(of_walk)
        of_walk = x.decay[n] * of_walk + weighted(k, decay).T @ v
        written = x.decay[n] * written + k.T @ weighted(v, decay)
    return found


def passing(x: Tiles, of_h: bool, anew: bool = False) -> Tensor:
    """What passes each tile, as the difference of sums over all later ones, or over those before in its segment."""
    q_dq, k_dk, dC = [], [], torch.zeros(D_QK, D_HV)
    starts = states(x, of_h)
    for n, C in enumerate(starts):
        q_dq.append((weighted(x.q[n], x.query_decay[n]) * (x.dh[n] @ C.T)).sum().double())
    entering = torch.zeros(len(x.q), dtype=torch.float64)
    for n in reversed(range(len(x.q))):
        k_dk.append((weighted(x.k[n], x.key_decay[n]) * (x.v[n] @ dC.T)).sum().double())
        dC = x.decay[n] * dC + weighted(x.q[n], x.query_decay[n]).T @ x.dh[n]
        if n % SEGMENT == 0:
            entering[n] = (starts[n] * dC).sum()
    q_dq, k_dk = torch.stack(q_dq), torch.stack(k_dk[::-1])
    added = k_dk - q_dq
    if anew:
        within = torch.cat([part.cumsum(0) for part in added.split(SEGMENT)]) - added
        first = entering[::SEGMENT].repeat_interleave(SEGMENT)[: len(added)]
        return first + within - q_dq
    return added - added.flip(0).cumsum(0).flip(0) - k_dk


def exact(x: Tiles) -> Tensor:
    """The same as <C, dC> in float64."""
    x = Tiles(*(y.double() for y in x))
    C = torch.zeros(D_QK, D_HV, dtype=torch.float64)
    before, dC = [], torch.zeros_like(C)
    for k, v, decay, of_tile in zip(x.k, x.v, x.key_decay, x.decay, strict=True):
        before.append(C)
        C = of_tile * C + (decay[:, None] * k).T @ v
    found = []
    for n in reversed(range(len(x.q))):
        found.append(x.decay[n] * (before[n] * dC).sum())
        dC = x.decay[n] * dC + (x.query_decay[n][:, None] * x.q[n]).T @ x.dh[n]
    return torch.stack(found[::-1])


def exact_df(x: Tiles) -> Tensor:
    """Return df (tiles, 64) by autograd through the tiles in float64."""
    x = Tiles(*(y.double() for y in x))
    log_f = x.log_f.requires_grad_()
    C, total = torch.zeros(D_QK, D_HV, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for q, k, v, dh, log_f_of, log_i in zip(*x[:4], log_f, x.log_i, strict=True):
        b = log_f_of.cumsum(0)
        P = (D_QK**-0.5 * q @ k.T * (b[:, None] - b + log_i).exp()).tril()
        total = total + ((P @ v + D_QK**-0.5 * b.exp()[:, None] * (q @ C)) * dh).sum()
        C = b[-1].exp() * C + ((b[-1] - b + log_i).exp()[:, None] * k).T @ v
    (found,) = torch.autograd.grad(total, log_f)
    return found * of_gate(x)


def of_gate(x: Tiles) -> Tensor:
    """Return d log f / df, 1 - sigmoid(f)."""
    return 1 - x.log_f.detach().double().exp()


def errors(T: int, mean: float, seed: int) -> list[float]:
    """Return the errors of what passes tiles with states of a pass, of h, and of h anew, then those of df."""
    x = draw(T, mean, seed)
    wanted, df = exact(x), exact_df(x)
    off = [passing(x, *how) - wanted for how in ((False,), (True,), (True, True))]
    of_df = [(of_gate(x) * each[:, None]).norm() / df.norm() for each in off]
    return [x.item() for x in (*(each.norm() / wanted.norm() for each in off), *of_df)]


def main() -> None:
    print("| T | forget gates | passing: states of a pass | of h | anew | df: states of a pass | of h | anew |")
    print("| --- " * 8 + "|")
    for T in map(int, sys.argv[1:] or (4096, 16384, 65536)):
        for mean in (3, 5):
            found = zip(*(errors(T, mean, seed) for seed in (0, 1)), strict=True)
            print(f"| {T} | N({mean}, 1) |", " | ".join(", ".join(f"{e:.2g}" for e in each) for each in found), "|")


if __name__ == "__main__":
    main()
