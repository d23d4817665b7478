"""Compile and launch kernels: a launch like an earlier one skips what Triton would do again.

At each launch Triton binds, inspects and hashes every argument to find what it compiled for such ones, and what it has
to know of a descriptor it takes from the text of a layout: half of the host's time for a kernel of many arguments. Here
a launch like an earlier one goes straight to what was compiled for that (docs/decisions/2026-11-26-host-time.md).

Triton compiles anew where a number becomes 1 or a multiple of 16, or is no longer one. Kernels say
`do_not_specialize` of counts, and `do_not_specialize_on_alignment` where code for 1 is less: another batch, length or
number of heads then compiles nothing. Lengths and strides that loads and stores are aligned by are left to Triton.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from triton import knobs  # pyright: ignore[reportMissingTypeStubs]
from triton.language.core import constexpr  # pyright: ignore[reportMissingTypeStubs]
from triton.runtime.driver import driver  # pyright: ignore[reportMissingTypeStubs]
from triton.runtime.jit import JITFunction  # pyright: ignore[reportMissingTypeStubs]

# a * b + c is rounded once. Triton 3.10 will do so only if asked, and 3.9 says so wherever nobody asks.
COMPILED = {"enable_fp_fusion": True}
MOST = 4096  # kinds of launches that are remembered: shapes that never come again are not to pile up

_Compiled: type[Any] = JITFunction  # it says little of its own types
_PLAIN = frozenset((int, bool, float, str, type(None)))
_TENSORS = frozenset((Tensor, torch.nn.Parameter))
_hooks: Any = knobs.runtime
_remembered: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}


def enqueue(kernel: Any, programs: int | tuple[int, int, int], *args: Any, **options: Any) -> None:
    """Launch kernel[(programs,)](*args, **options), compiled as COMPILED says.

    Args:
        programs: how many, or how many in each of three dimensions.
        kernel: of Triton or Gluon; it must live as long as the process.
        args: in the order of its parameters, those that are not in options: numbers, text, None, tensors,
            descriptors, of a class of its own for each layout, and tuples of these but for descriptors, in which a
            `tl.constexpr` is a constant.
        options: the other parameters, all of them constexpr and hashable, and Triton's own options.
    """
    grid = (programs, 1, 1) if isinstance(programs, int) else programs
    if not isinstance(kernel, _Compiled):  # Triton's interpreter
        kernel[grid](*args, **options, **COMPILED)
        return
    active: Any = driver.active
    device = active.get_current_device()
    kinds: list[Any] = [id(kernel), device]
    _add_kinds(kinds, args)
    key = (*kinds, *options, *options.values())
    earlier = _remembered.get(key)
    if earlier is not None:
        compiled, constants = earlier
        if _hooks.launch_enter_hook.calls or _hooks.launch_exit_hook.calls:  # a profiler is to be told of launches
            compiled[grid](*args, *constants)
            return
        stream = active.get_current_stream(device)
        untold = None, None, None  # what hooks are told, and the hooks
        compiled.run(*grid, stream, compiled.function, compiled.packed_metadata, *untold, *args, *constants)
        return
    compiled = kernel[grid](*args, **options, **COMPILED)
    if compiled is None:  # Triton's hooks can keep it from being compiled
        return
    if len(_remembered) >= MOST:
        _remembered.clear()
    constexprs = kernel.params[len(args) :]
    _remembered[key] = compiled, tuple(options.get(p.name, p.default) for p in constexprs)


def unspecialised(n: int) -> int:
    """Return n >= 0 as a kernel's tuple takes it, 2 n + 1, where no value of n is to compile anew.

    Triton heeds `do_not_specialize` in no tuple: a number in it that becomes 1 or a multiple of 16 compiles anew. This
    one is neither where n > 0. The kernel reads `n >> 1`.
    """
    return 2 * n + 1


def unless_one(n: int) -> int:
    """Return n as a kernel's tuple takes it, 2 n - 1, where only 1 is to compile anew, as code for it is less.

    The kernel reads `(n + 1) >> 1`.
    """
    return 2 * n - 1


def _add_kinds(kinds: list[Any], elements: tuple[Any, ...]) -> None:
    """Append what Triton specialises on, of numbers, tensors, descriptors and tuples of tensors and numbers.

    One flat list: what follows a class, a type or a number tells how many of the next elements belong to it.
    """
    for x in elements:
        kind = x.__class__
        if kind in _PLAIN:
            kinds.append(x)
        elif kind in _TENSORS or isinstance(x, Tensor):
            kinds.append(x.dtype if x.data_ptr() % 16 == 0 else (x.dtype,))
        elif isinstance(x, tuple):
            kinds += kind, len(x)  # pyright: ignore[reportUnknownArgumentType]
            _add_kinds(kinds, x)  # pyright: ignore[reportUnknownArgumentType]
        elif kind is constexpr:
            kinds.append(x.value)
        else:
            kinds += kind, x.base.dtype
            kinds += x.block_shape
