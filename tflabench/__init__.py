"""Kernel benchmark and roofline analysis for Tiled Flash Linear Attention (TFLA).

`tflabench.ops` has the kernels, `tflabench.plugin` what gives the bench more of them, and the functions here measure,
read and draw. Importing this imports neither torch nor pandas nor matplotlib.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tflabench.api import Axes, advise, compare, load, optimal_chunk_size, plot, profile, roofline, sweep, verify
    from tflabench.problem import InputError

__all__ = [
    "Axes", "InputError", "advise", "compare", "load", "optimal_chunk_size", "plot", "profile", "roofline", "sweep",
    "verify",
]  # fmt: skip
__version__ = "0.3.0"


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is: `tflabench.kernels` needs nothing of it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tflabench import api, problem

    return getattr(problem if name == "InputError" else api, name)


def __dir__() -> list[str]:
    """Return the names of the API, which `help` and completion show."""
    return sorted([*__all__, "__all__", "__doc__", "__path__", "__version__"])
