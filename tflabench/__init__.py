"""Kernel benchmark and roofline analysis for Tiled Flash Linear Attention (TFLA).

`tflabench.ops` has the kernels, `tflabench.plugin` what gives the bench more of them, and the functions here measure,
read and draw. Importing this imports neither torch nor pandas nor matplotlib.
"""

from tflabench.api import Axes, load, optimal_chunk_size, plot, sweep
from tflabench.problem import InputError

__all__ = ["Axes", "InputError", "load", "optimal_chunk_size", "plot", "sweep"]
__version__ = "0.1.0"
