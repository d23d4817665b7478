"""Set-up of the test process, before anything else is imported."""

import os

import torch

from tflabench.__main__ import leave_repository_root

leave_repository_root()

# Triton decides on its import whether kernels are interpreted, which they are where there is no GPU to run them.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
