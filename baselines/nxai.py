"""mlstm_kernels, published with the paper: limit_chunk, xl_chunk, xl_chunk_siging, and its forms in plain PyTorch.

Run, never copied: the package has a licence of its own (NXAI Community License).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from types import ModuleType
from typing import TYPE_CHECKING

from tflabench.baselines.packages import EINOPS, refuse
from tflabench.baselines.recurrences import decay_gradient_as_summed
from tflabench.implementations.adapter import Case, Formulation, Implementation, Owner
from tflabench.implementations.mlstm import GATES, GateName, sequence_inputs, sequence_oracle
from tflabench.implementations.packages import installed_version
from tflabench.problem import Problem
from tflabench.theory.launches import Modelled

if TYPE_CHECKING:
    import torch
    from torch import Tensor

OWNER = Owner("mlstm_kernels", "blue")
NEEDS = {"mlstm_kernels": "pip install mlstm_kernels==2.0.6", **EINOPS}
OTHER_TRITON = "pip install triton==3.7.1"
NATIVE_ORACLE_BLOCK = 1024  # queries at a time


@dataclass(frozen=True)
class Kernel:
    """One function of mlstm_kernels.torch.

    Attributes:
        form: the module below mlstm_kernels.torch, "chunkwise" or "parallel".
        chunk_size: what it takes where the problem leaves it open (of the paper, Fig. 4); None without chunks.
        native: plain PyTorch, which runs anywhere.
        autograd: its gradients are PyTorch's own, through the normaliser too.
        aborts: the version of Triton whose compiler it makes abort.
    """

    name: str
    title: str
    gate: GateName
    form: Formulation
    function: str
    chunk_size: int | None = None
    largest_chunk_size: int | None = None
    native: bool = False
    autograd: bool = False
    aborts: str | None = None


def _natives(gate: GateName, form: Formulation, prefix: str) -> tuple[Kernel, ...]:
    """Return a form with PyTorch's own gradients, and with the paper's ("custbw")."""
    return tuple(
        Kernel(
            name=f"nxai_{gate}_native_{form}_{gradient}",
            title=f"native {form}, {gradient}",
            gate=gate,
            form=form,
            function=f"{prefix}_{form}__native_{gradient}",
            chunk_size=64 if form == "chunkwise" else None,
            native=True,
            autograd=gradient == "autograd",
        )
        for gradient in ("autograd", "custbw")
    )


KERNELS = (
    Kernel("nxai_exp_limit", "limit_chunk", "exp", "chunkwise", "mlstm_chunkwise__limit_chunk", 64, 64),
    Kernel("nxai_exp_xl", "xl_chunk", "exp", "chunkwise", "mlstm_chunkwise__xl_chunk", 128, aborts="3.6.0"),
    Kernel("nxai_sig_xl", "xl_chunk", "sig", "chunkwise", "mlstm_siging_chunkwise__xl_chunk", 128),
    *_natives("exp", "chunkwise", "mlstm"),
    *_natives("exp", "parallel", "mlstm"),
    *_natives("sig", "parallel", "mlstm_siging"),
)


def native_oracle(gate: str, autograd: bool, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return h (B, H, T, d_hv) by the parallel form of the TFLA paper's appendix, all of it in the dtype of the inputs.

    So do the native forms, whose error in 16 bits is therefore larger than that of the reference, which keeps gates and
    states in float32. Blocks of queries, each recomputed in the backward pass, so that long sequences fit.
    """
    import torch
    from torch.nn.functional import logsigmoid
    from torch.utils.checkpoint import checkpoint

    q, k, v, f, i = (inputs[name] for name in "qkvfi")
    b = logsigmoid(f).cumsum(-1)
    log_input = i if gate == "exp" else logsigmoid(i)

    def block(start: int, stop: int) -> Tensor:
        rows = torch.arange(start, stop, device=q.device)
        future = torch.arange(stop, device=q.device) > rows[:, None]
        log_D = b[..., start:stop, None] - b[..., None, :stop] + log_input[..., None, :stop]
        log_D = log_D.masked_fill(future, -torch.inf)
        scores = q[:, :, start:stop] @ k[:, :, :stop].mT * q.shape[-1] ** -0.5
        if gate == "sig":
            return (scores * log_D.exp()) @ v[:, :, :stop]
        m = log_D.amax(-1, keepdim=True).detach()
        scores = scores * (log_D - m).exp()
        n = torch.maximum(scores.sum(-1, keepdim=True).abs(), (-m).exp())
        return (scores / (n if autograd else n.detach())) @ v[:, :, :stop]

    edges = [*range(0, q.shape[2], NATIVE_ORACLE_BLOCK), q.shape[2]]
    return torch.cat([checkpoint(block, *ends, use_reentrant=False) for ends in pairwise(edges)], dim=2)


def module_of(kernel: Kernel) -> ModuleType:
    """Import the module of a kernel."""
    return importlib.import_module(f"mlstm_kernels.torch.{kernel.form}")


def build(kernel: Kernel, problem: Problem, device: torch.device) -> Case:
    """Return the Case of a kernel of mlstm_kernels."""
    import torch

    function = getattr(module_of(kernel), kernel.function)
    options: dict[str, object] = {"autocast_kernel_dtype": getattr(torch, problem.dtype)}
    if kernel.chunk_size:
        options["chunk_size"] = problem.chunk_size or kernel.chunk_size
    if kernel.gate == "sig":  # as the paper times it: mLSTMsig has no normaliser; the package's default would add one
        options["normalize"] = False
    inputs = sequence_inputs(problem, device)
    q, k, v, i, f = (inputs[name] for name in "qkvif")
    if kernel.native:
        options["eps"] = 0.0  # added to the normaliser
        oracle = partial(native_oracle, kernel.gate, kernel.autograd)
    else:
        oracle = partial(sequence_oracle, GATES[kernel.gate])
    return Case(
        inputs=inputs,
        forward=lambda: function(q, k, v, i, f, **options),
        oracle=oracle,
        linear="v",
        as_kernels_do=None if kernel.autograd else partial(decay_gradient_as_summed, "f"),
        details={
            "kernel": kernel.function,
            **({"chunk_size": options["chunk_size"]} if kernel.chunk_size else {}),
        },
    )


def refuses(kernel: Kernel, problem: Problem, device: str) -> str | None:
    """Return why this kernel cannot run this, or None."""
    if reason := refuse(problem, "cuda" if kernel.native else device, NEEDS, "bfloat16 float16 float32"):
        return reason
    if not kernel.native and (reason := _refuse_triton(kernel)):
        return reason
    chunk_size = kernel.chunk_size and (problem.chunk_size or kernel.chunk_size)
    if chunk_size and problem.seq_len % chunk_size:
        return f"needs a sequence length that is a multiple of the chunk size {chunk_size}, not {problem.seq_len}"
    if chunk_size and kernel.largest_chunk_size and chunk_size > kernel.largest_chunk_size:
        return f"limit_chunk takes chunks of at most {kernel.largest_chunk_size} steps, not {chunk_size}"
    for name in () if kernel.native else ("d_qk", "d_hv"):
        size = getattr(problem, name)
        if size < 16 or size & (size - 1):
            return f"needs {name} to be a power of two from 16, not {size}"
    return None


def _refuse_triton(kernel: Kernel) -> str | None:
    """Return why the installed Triton cannot compile a kernel, and which one can."""
    version = installed_version("triton")
    if version is None:
        return None
    if version == kernel.aborts:
        return f"the compiler of Triton {version} aborts on this kernel: {OTHER_TRITON}"
    if int(version.split(".")[0]) > 3 or int(version.split(".")[1]) >= 9:
        return f"needs block pointers, which Triton {version} has no more: {OTHER_TRITON}"
    return None


def _implementation(kernel: Kernel) -> Implementation:
    return Implementation(
        name=kernel.name,
        family="mlstm",
        title=f"mlstm_kernels mLSTM{kernel.gate} {kernel.title}",
        build=partial(build, kernel),
        refuses=partial(refuses, kernel),
        gate=kernel.gate,
        formulation=kernel.form,
        chunked=kernel.chunk_size is not None,
        owner=OWNER,
        package="mlstm_kernels",
        imports=partial(module_of, kernel),
        compiles=not kernel.native,
        own_process=not kernel.native,
        majors=None if kernel.native else (8, 12),
        modelled=None if kernel.native or kernel.form != "chunkwise" else Modelled("unpipelined", kernel.gate),
    )


IMPLEMENTATIONS = tuple(_implementation(kernel) for kernel in KERNELS)
