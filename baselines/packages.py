"""Needs of baselines: modules deep in a library, and problems that its kernels take."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from itertools import accumulate
from types import ModuleType

from tflabench.implementations.packages import installed
from tflabench.problem import Problem

EINOPS = {"einops": "pip install einops"}


def import_inner(module: str, **names: object) -> ModuleType:
    """Return a module deep in a library without running the packages around it (fla's import transformers, in seconds).

    A package around it that nobody has imported yet is nothing but its folder and `names`; its own code runs
    when somebody asks it for another name.
    """
    *packages, _ = accumulate(module.split("."), "{}.{}".format)
    for name in packages:
        if name not in sys.modules:
            sys.modules[name] = _bare(name, names)
            around, _, last = name.rpartition(".")
            if around:
                setattr(sys.modules[around], last, sys.modules[name])
    return importlib.import_module(module)


def _bare(name: str, names: Mapping[str, object]) -> ModuleType:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError(f"no package is called {name}", name=name)
    package, loader = importlib.util.module_from_spec(spec), spec.loader

    def ask(attribute: str) -> object:
        if attribute.startswith("__"):
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}")
        del package.__dict__["__getattr__"]
        loader.exec_module(package)
        return getattr(package, attribute)

    package.__dict__.update(names, __getattr__=ask)
    return package


def refuse(
    problem: Problem,
    device: str,
    needs: Mapping[str, str],
    dtypes: str = "bfloat16 float16",
    heads: tuple[int, ...] = (),
    backward: bool = True,
) -> str | None:
    """Why no kernel of a library can run: no GPU, a missing package, a pass, dtype or head size that it does not have.

    Args:
        needs: module -> the command that installs it, in the order in which they are missed.
        dtypes: the dtypes that it takes.
        heads: d_qk = d_hv that it takes; empty for any sizes.
        backward: whether it has a backward pass.
    """
    if device != "cuda":
        return "its kernels need a CUDA GPU"
    for module, install in needs.items():
        if not installed(module):
            return f"{module} is not installed: {install}"
    if problem.pass_ == "decode":
        return "only whole sequences are measured, not single steps"
    if problem.pass_ == "fwbw" and not backward:
        return "has no backward pass"
    if problem.dtype not in dtypes.split():
        return f"takes {' and '.join(dtypes.split())}, not {problem.dtype}"
    if heads and (problem.d_qk != problem.d_hv or problem.d_qk not in heads):
        taken = " and ".join(f"{size}/{size}" for size in heads)
        return f"takes heads of {taken}, not {problem.d_qk}/{problem.d_hv}"
    return None
