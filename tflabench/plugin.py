"""Everything that a plugin needs to give the bench more implementations.

A plugin is a file, for `--plugin FILE` or `sweep(plugin=FILE)`, that defines IMPLEMENTATIONS, a tuple
(docs/add-a-kernel.md). For a kernel of the mLSTM `mlstm_kernel` makes its entry from a function. A whole family of
linear RNNs, with an operation of its own, is what `register_family` takes (docs/add-a-family.md).

A package that is installed needs no option: its entry points of the group "tflabench.implementations" name modules that
define IMPLEMENTATIONS, or such tuples themselves. In its pyproject.toml:

    [project.entry-points."tflabench.implementations"]
    mine = "my_package.my_module"
"""

from tflabench.implementations.adapter import Case as Case
from tflabench.implementations.adapter import FinalStates as FinalStates
from tflabench.implementations.adapter import Implementation as Implementation
from tflabench.implementations.adapter import SuffixSum as SuffixSum
from tflabench.implementations.adapter import Unsupported as Unsupported
from tflabench.implementations.adapter import attention_inputs as attention_inputs
from tflabench.implementations.adapter import draw as draw
from tflabench.implementations.mlstm import mlstm_kernel as mlstm_kernel
from tflabench.implementations.recurrences import REFERENCE as REFERENCE
from tflabench.implementations.recurrences import Recurrence as Recurrence
from tflabench.implementations.recurrences import Variant as Variant
from tflabench.implementations.recurrences import register_family as register_family
from tflabench.kernels.families import Family as Family
from tflabench.kernels.types import Gating as Gating
from tflabench.problem import Problem as Problem
from tflabench.theory.cost import Cost as Cost
from tflabench.theory.cost import GateCounts as GateCounts

__all__ = [name for name in dir() if not name.startswith("_")]  # pyright: ignore[reportUnsupportedDunderAll]
