"""Runs fla's own tests of GLA, of the delta rules and of KDA against our functions, a pytest plugin.

    git clone https://github.com/fla-org/flash-linear-attention
    PYTHONPATH=tests/support pytest -p fla_cases flash-linear-attention/tests/ops/test_{gla,delta,gdn,kda}.py

Where fla's tests import its functions they get ours, but for calls that `install` leaves to fla. On a machine without a
GPU everything runs in PyTorch, in minutes.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch

from tflabench.kernels.compat import fla as ours
from tflabench.kernels.kda.plan import LARGEST_D_QK

KDA = "chunk_kda", "fused_recurrent_kda"
TESTED = {
    "gla": ("chunk_gla", "fused_chunk_gla", "fused_recurrent_gla"),
    "delta_rule": ("chunk_delta_rule",),  # what it is compared with is fla's fused_recurrent_delta_rule
    "gated_delta_rule": ("chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule"),
    "kda": KDA,
}
LEFT = {"transpose_state_layout", "return_intermediate_states"}  # keywords


def served(name: str, original: Any) -> Any:
    """Return our function, but for calls with a keyword, or a d_qk of KDA, that is left to fla."""
    function = getattr(ours, name)

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        q = named["q"] if "q" in named else args[0]
        left = LEFT & set(named) or (name in KDA and q.shape[-1] > LARGEST_D_QK)
        return (original if left else function)(*args, **named)

    return call


for folder, names in TESTED.items():
    theirs: Any = importlib.import_module(f"fla.ops.{folder}")
    for name in names:
        setattr(theirs, name, served(name, getattr(theirs, name)))
if not torch.cuda.is_available():
    utils: Any = importlib.import_module("fla.utils")
    utils.device = "cpu"
