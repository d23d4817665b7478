"""Everything that a plugin needs to give the bench more implementations.

A plugin is a file, for `--plugin FILE` or `sweep(plugin=FILE)`.

A plugin defines IMPLEMENTATIONS, a tuple. For a kernel of the mLSTM `mlstm_kernel` makes its entry from a function:

    from tflabench.plugin import mlstm_kernel

    def my_kernel(q, k, v, i, f):  # q, k (B, H, T, d_qk), v (B, H, T, d_hv), i, f (B, H, T)
        ...
        return h  # (B, H, T, d_hv)

    IMPLEMENTATIONS = (mlstm_kernel("my_kernel", my_kernel, gate="sig"),)

A whole family of linear RNNs, with an operation of its own, is what `register_family` takes (docs/add-a-family.md).
For anything else the plugin makes an `Implementation` itself, whose `build` returns a `Case`; `draw` makes the inputs,
and `Unsupported` is what `build` raises where only device or library can tell that it cannot run.

A package that is installed needs no option: its entry points of the group "tflabench.implementations" name modules that
define IMPLEMENTATIONS, or such tuples themselves. In its pyproject.toml:

    [project.entry-points."tflabench.implementations"]
    mine = "my_package.my_module"
"""

from tflabench.implementations.adapter import (
    Case,
    FinalStates,
    Implementation,
    SuffixSum,
    Unsupported,
    attention_inputs,
    draw,
)
from tflabench.implementations.mlstm import mlstm_kernel
from tflabench.implementations.recurrences import REFERENCE, Recurrence, Variant, register_family
from tflabench.kernels.families import Family
from tflabench.kernels.types import Gating
from tflabench.problem import Problem
from tflabench.theory.cost import Cost, GateCounts

__all__ = [
    "REFERENCE",
    "Case",
    "Cost",
    "Family",
    "FinalStates",
    "GateCounts",
    "Gating",
    "Implementation",
    "Problem",
    "Recurrence",
    "SuffixSum",
    "Unsupported",
    "Variant",
    "attention_inputs",
    "draw",
    "mlstm_kernel",
    "register_family",
]
