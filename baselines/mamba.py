"""mamba-ssm: Mamba's selective scan, and Mamba 2's state space duality with and without its fused convolution.

A problem's heads * d_hv are the channels, d_qk is the size N of the state; B and C belong to all heads (one group). The
time step enters before bias and softplus, which the kernels apply. A = -1, -2, ... and D = 1, as models start with.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tflabench.baselines.packages import EINOPS, import_inner, refuse
from tflabench.implementations.adapter import Case, Implementation, Owner, draw
from tflabench.implementations.bundled import mamba2_inputs, mamba2_parameters, operations
from tflabench.implementations.recurrences import oracle
from tflabench.problem import Problem
from tflabench.theory import linear_attention
from tflabench.theory.cost import Cost

if TYPE_CHECKING:
    import torch
    from torch import Tensor

OWNER = Owner("mamba-ssm", "purple")
VERSION = "mamba-ssm==2.3.2.post1"
COMPILED = f"pip install --no-build-isolation {VERSION} (needs nvcc)"
SSD_MODULE = "mamba_ssm.ops.triton.ssd_combined"
SSD_NEEDS = {
    SSD_MODULE: "MAMBA_FORCE_BUILD=TRUE MAMBA_SKIP_CUDA_BUILD=TRUE "
    f"pip install --no-build-isolation --no-deps {VERSION}",
    "triton": "pip install triton",
    **EINOPS,
}
ssd_module = partial(import_inner, SSD_MODULE)  # mamba_ssm itself needs a compiled scan, which may not be built
SCAN_MODULE = "mamba_ssm.ops.selective_scan_interface"
SCAN_NEEDS = {SCAN_MODULE: COMPILED, "selective_scan_cuda": COMPILED, **EINOPS}
CONV_NEEDS = {**SSD_NEEDS, "causal_conv1d": "pip install --no-build-isolation causal-conv1d==1.7.0 (needs nvcc)"}

ssd_oracle = partial(oracle, operations()["mamba2_ssd"])
CHUNK_SIZE = 256  # mamba-ssm's own, and the paper's
CONV_WIDTH = 4
LARGEST_STATE = 256
DTYPES = "bfloat16 float16 float32"
SCAN_FLOPS = 7  # of Mamba, a state and step: exp(dt A) 2, its product with h 1, + dt u B 2, C h 2
SCAN_BACKWARD_FLOPS = 22  # dh = C dy + exp(dt A) dh 4, dC 2, dB 2, du 2, ddt 4, dA 3, with h again 5


def build_scan(problem: Problem, device: torch.device) -> Case:
    """Mamba: u, dt (B, channels, T), B, C (B, 1, N, T). A (channels, N) is no input, but its gradient is computed."""
    import torch

    scan = importlib.import_module(SCAN_MODULE).selective_scan_fn
    channels, states = problem.heads * problem.d_hv, problem.d_qk
    steps = (problem.batch, channels, problem.seq_len)
    shared = (problem.batch, 1, states, problem.seq_len)
    inputs = draw(problem, device, {"u": steps, "dt": steps, "B": shared, "C": shared})
    for name in ("B", "C"):  # time before state, as the gate wants to cut it; in memory as the kernel wants it
        inputs[name] = inputs[name].detach().mT.requires_grad_(inputs[name].requires_grad)
    parameters = mamba2_parameters(channels, problem, device)
    inputs |= {name: parameters[name] for name in ("dt_bias", "D")}
    u, dt, B, C, dt_bias, D = inputs.values()
    A = _state_decays(channels, states, torch.float32, device).requires_grad_(problem.pass_ == "fwbw")
    return Case(
        inputs=inputs,
        forward=lambda: scan(u, dt, A, B.mT, C.mT, D, delta_bias=dt_bias, delta_softplus=True),
        oracle=scan_oracle,
        details={"kernel": f"{SCAN_MODULE}.selective_scan_fn"},
    )


def _state_decays(channels: int, states: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return A (channels, N) of Mamba: -1, -2, ..., -N in every channel."""
    import torch

    return -torch.arange(1, states + 1, dtype=dtype, device=device).repeat(channels, 1)


def scan_oracle(inputs: Mapping[str, Tensor]) -> Tensor:
    """Return y (B, channels, T)."""
    import torch
    from torch.nn.functional import softplus

    from tflabench.baselines.recurrences import selective_scan

    u, dt, B, C, dt_bias, D = (inputs[name] for name in ("u", "dt", "B", "C", "dt_bias", "D"))
    work = torch.promote_types(u.dtype, torch.float32)
    A = _state_decays(u.shape[1], B.shape[-1], work, u.device)
    delta = softplus(dt.to(work) + dt_bias.to(work)[:, None])
    return selective_scan(u, delta, A, B[:, 0].mT, C[:, 0].mT, D)


def build_ssd(problem: Problem, device: torch.device) -> Case:
    """Mamba 2: x (B, T, H, P), dt (B, T, H), B and C (B, T, 1, N)."""
    scan = ssd_module().mamba_chunk_scan_combined
    inputs = mamba2_inputs(problem, device)
    x, dt, B, C, A, D, dt_bias = inputs.values()
    chunk_size = problem.chunk_size or CHUNK_SIZE
    return Case(
        inputs=inputs,
        forward=lambda: scan(x, dt, A, B, C, chunk_size, D=D, dt_bias=dt_bias, dt_softplus=True),
        oracle=ssd_oracle,
        linear="x",
        layout="bthd",
        details={"kernel": f"{SSD_MODULE}.mamba_chunk_scan_combined", "chunk_size": chunk_size},
    )


def build_conv(problem: Problem, device: torch.device) -> Case:
    """Mamba 2's fused entry: convolution, scan and gate; z, x, B, C and dt side by side in one (B, T, 1, channels)."""
    scan = ssd_module().mamba_split_conv1d_scan_combined
    inner, mixed = problem.heads * problem.d_hv, problem.heads * problem.d_hv + 2 * problem.d_qk
    inputs = draw(problem, device, {"zxbcdt": (problem.batch, problem.seq_len, 1, inner + mixed + problem.heads)})
    (zxbcdt,) = inputs.values()
    inputs |= mamba2_parameters(problem.heads, problem, device)
    A, D, dt_bias = (inputs[name] for name in ("A", "D", "dt_bias"))
    weight, bias = draw(problem, device, {"conv": (mixed, CONV_WIDTH), "conv_bias": (mixed,)}).values()
    weight = (weight.detach() / 2).requires_grad_(problem.pass_ == "fwbw")
    chunk_size = problem.chunk_size or CHUNK_SIZE
    return Case(
        inputs=inputs,
        forward=lambda: scan(
            zxbcdt.squeeze(2), weight, bias, dt_bias, A, D, chunk_size, headdim=problem.d_hv, ngroups=1
        ).unsqueeze(2),
        oracle=partial(conv_oracle, weight.detach(), bias.detach(), problem.d_qk),
        layout="bthd",
        details={"kernel": f"{SSD_MODULE}.mamba_split_conv1d_scan_combined", "chunk_size": chunk_size},
    )


def conv_oracle(weight: Tensor, bias: Tensor, states: int, inputs: Mapping[str, Tensor]) -> Tensor:
    """(B, T, 1, channels): SSD of silu(convolution of x, B, C), times silu(z)."""
    import torch
    from torch.nn.functional import conv1d, pad, silu

    zxbcdt, heads = inputs["zxbcdt"].squeeze(2), inputs["A"].shape[0]
    mixed = weight.shape[0]
    inner = mixed - 2 * states
    z, mixture, dt = zxbcdt.split([inner, mixed, heads], dim=-1)
    work = torch.promote_types(zxbcdt.dtype, torch.float32)
    padded = pad(mixture.mT.to(work), (CONV_WIDTH - 1, 0))
    mixture = silu(conv1d(padded, weight.to(work)[:, None], bias.to(work), groups=mixed)).mT.to(zxbcdt.dtype)
    x, B, C = mixture.split([inner, states, states], dim=-1)
    parts = {"x": x.unflatten(-1, (heads, -1)), "dt": dt, "B": B[:, :, None], "C": C[:, :, None]}
    y = ssd_oracle(parts | {name: inputs[name] for name in ("dt_bias", "D", "A")}).flatten(2)
    return (y.to(work) * silu(z.to(work))).to(zxbcdt.dtype)[:, :, None]


def refuse_ssd(needs: Mapping[str, str], problem: Problem, device: str) -> str | None:
    """Return why Mamba 2's kernels cannot run this, or None."""
    if reason := refuse(problem, device, needs, DTYPES) or _refuse_state(problem):
        return reason
    chunk_size = problem.chunk_size or CHUNK_SIZE
    if chunk_size < 16 or chunk_size & (chunk_size - 1):
        return f"takes a chunk_size that is a power of two from 16, not {chunk_size}"
    return None


def _refuse_state(problem: Problem) -> str | None:
    if problem.d_qk > LARGEST_STATE:
        return f"takes states (d_qk) up to {LARGEST_STATE}, not {problem.d_qk}"
    return None


def scan_cost(problem: Problem) -> Cost:
    """Return the cost of one call of Mamba's scan over heads * d_hv channels of d_qk states, in registers."""
    channels, states, size = problem.heads * problem.d_hv, problem.d_qk, problem.element_bytes
    backward = problem.pass_ == "fwbw"
    # u, dt -> y, with B and C of all channels; u, dt, dy -> du, ddt, with B, C and their gradients.
    elements = 3 * channels + 2 * states + backward * (5 * channels + 4 * states)
    return Cost(
        flops=problem.tokens * channels * states * (SCAN_FLOPS + backward * SCAN_BACKWARD_FLOPS),
        bytes=problem.tokens * elements * size,
    )


def ssd_cost(problem: Problem) -> Cost:
    """Return what a call of Mamba 2 computes and moves."""
    chunk_size = problem.chunk_size or CHUNK_SIZE
    return linear_attention.cost(problem, decays=1, chunk_size=chunk_size, group=problem.heads)


def conv_cost(problem: Problem) -> Cost:
    """SSD, and the convolution: x, B and C read and written once more, and z read; the same of their gradients."""
    ssd = ssd_cost(problem)
    inner, mixed = problem.heads * problem.d_hv, problem.heads * problem.d_hv + 2 * problem.d_qk
    passes = 3 if problem.pass_ == "fwbw" else 1
    return Cost(
        flops=ssd.flops + passes * problem.tokens * mixed * 2 * CONV_WIDTH,
        bytes=ssd.bytes + passes * problem.tokens * (2 * mixed + inner) * problem.element_bytes,
    )


MAMBA2 = Implementation(
    name="mamba2",
    family="ssm",
    title="Mamba 2 SSD",
    build=build_ssd,
    refuses=partial(refuse_ssd, SSD_NEEDS),
    chunked=True,
    cost=ssd_cost,
    owner=OWNER,
    imports=ssd_module,
    package="mamba-ssm",
    compiles=True,
    own_process=True,
    tunes=True,
    majors=(8, 12),
    operation="mamba2",
    bound="shared_keys",
)
IMPLEMENTATIONS = (
    Implementation(
        name="mamba",
        family="ssm",
        title="Mamba",
        build=build_scan,
        refuses=lambda problem, device: refuse(problem, device, SCAN_NEEDS, DTYPES) or _refuse_state(problem),
        formulation="recurrent",
        cost=scan_cost,
        owner=OWNER,
        package="mamba-ssm",
        own_process=True,
        majors=(7, 12),
    ),
    MAMBA2,
    replace(
        MAMBA2,
        name="mamba2_conv",
        title="Mamba 2 with convolution",
        build=build_conv,
        refuses=partial(refuse_ssd, CONV_NEEDS),
        cost=conv_cost,
        packages=("causal-conv1d",),
        operation=None,
        bound=None,
    ),
)
