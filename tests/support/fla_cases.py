"""Runs fla's own tests of GLA against our functions, a pytest plugin.

    git clone https://github.com/fla-org/flash-linear-attention
    PYTHONPATH=tests/support pytest -p fla_cases flash-linear-attention/tests/ops/test_gla.py

Where fla's tests import its functions they get ours. On a machine without a GPU everything runs in PyTorch, in minutes.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from tflabench.kernels.compat import fla as ours

theirs: Any = importlib.import_module("fla.ops.gla")
utils: Any = importlib.import_module("fla.utils")

for name in ("chunk_gla", "fused_chunk_gla", "fused_recurrent_gla"):
    setattr(theirs, name, getattr(ours, name))
if not torch.cuda.is_available():
    utils.device = "cpu"
