"""Everything that a plugin needs to give the bench more implementations.

A plugin is a file, for `--plugin FILE` or `sweep(plugin=FILE)`, that defines IMPLEMENTATIONS, a tuple
(docs/add-a-kernel.md). For a kernel of the mLSTM `mlstm_kernel` makes its entry from a function. A whole family of
linear RNNs, with an operation of its own, is what `register_family` takes (docs/add-a-family.md).

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
