"""mlstm_kernels, the TFLA kernels published with the paper: limit_chunk, xl_chunk and xl_chunk with sigmoid input gate.

Run, never copied: the package has a licence of its own (NXAI Community License).
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Literal

from tflabench.adapter import Case, Implementation
from tflabench.bundled import GATES, sequence_inputs, sequence_oracle
from tflabench.problem import Problem

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MODULE = "mlstm_kernels.torch.chunkwise"
INSTALL = "pip install --no-deps mlstm_kernels==2.0.6"
DEFAULT_CHUNK_SIZE = {"limit_chunk": 64, "xl_chunk": 128}  # the paper's, Fig. 4


def forget_gate_as_kernels_do(inputs: Mapping[str, Tensor], results: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """df formed from dq and dk in the working dtype: q.dq - k.dk summed over the rest of the sequence, through sigmoid.

    Autograd through the reference keeps the gates in float32 and would allow df no more than the rounding of the
    result; the published kernels sum a difference of rounded terms, whose error grows with sqrt(T).
    """
    import torch

    if "df" not in results:
        return {}
    work = torch.promote_types(inputs["q"].dtype, torch.float32)
    q, k, f = (inputs[name].detach().to(work) for name in "qkf")
    d_log_f = (q * results["dq"] - k * results["dk"]).sum(-1).flip(-1).cumsum(-1).flip(-1)
    return {"df": (d_log_f * torch.sigmoid(-f)).to(inputs["f"].dtype)}


def build(variant: str, gate: Literal["exp", "sig"], problem: Problem, device: torch.device) -> Case:
    import torch

    module = importlib.import_module(MODULE)
    # As the paper times it: mLSTMsig has no normaliser; the package's default would add one.
    kernel = getattr(module, f"mlstm_{'siging_' if gate == 'sig' else ''}chunkwise__{variant}")
    options = {
        "chunk_size": problem.chunk_size or DEFAULT_CHUNK_SIZE[variant],
        "autocast_kernel_dtype": getattr(torch, problem.dtype),
        **({"normalize": False} if gate == "sig" else {}),
    }
    inputs = sequence_inputs(problem, device)
    q, k, v, i, f = (inputs[name] for name in "qkvif")
    return Case(
        inputs=inputs,
        forward=lambda: kernel(q, k, v, i, f, **options),
        oracle=partial(sequence_oracle, GATES[gate]),
        as_kernels_do=forget_gate_as_kernels_do,
        details={"kernel": kernel.__name__, "chunk_size": options["chunk_size"]},
    )


def refuses(variant: str, problem: Problem, device: str) -> str | None:
    if device != "cuda":
        return "its Triton kernels need a CUDA GPU"
    if importlib.util.find_spec("mlstm_kernels") is None:
        return f"mlstm_kernels is not installed: {INSTALL}"
    if problem.pass_ == "decode":
        return "only its sequence kernels are measured here"
    chunk_size = problem.chunk_size or DEFAULT_CHUNK_SIZE[variant]
    if problem.seq_len % chunk_size:
        return f"needs a sequence length that is a multiple of the chunk size {chunk_size}, not {problem.seq_len}"
    if variant == "limit_chunk" and chunk_size > 64:
        return f"limit_chunk takes chunks of at most 64 steps, not {chunk_size}"
    for name in ("d_qk", "d_hv"):
        size = getattr(problem, name)
        if size < 16 or size & (size - 1):
            return f"needs {name} to be a power of two from 16, not {size}"
    return None


def _implementation(gate: Literal["exp", "sig"], variant: str) -> Implementation:
    return Implementation(
        name=f"nxai_{gate}_{variant.removesuffix('_chunk')}",
        family="mlstm",
        title=f"mlstm_kernels mLSTM{gate} {variant}",
        build=partial(build, variant, gate),
        refuses=partial(refuses, variant),
        gate=gate,
        chunked=True,
        package="mlstm_kernels",
    )


IMPLEMENTATIONS = (
    _implementation("exp", "limit_chunk"),
    _implementation("exp", "xl_chunk"),
    _implementation("sig", "xl_chunk"),
)
