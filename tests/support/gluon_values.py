"""What the roles of a Gluon kernel on the CPU compute with: integers, layouts, blocks, memory with its addresses."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

SIXTEEN_BITS = (torch.bfloat16, torch.float16)


class Int(int):
    """An int that can be asked to be of another dtype, as the scalars of a kernel."""

    def to(self, _dtype: torch.dtype) -> Int:
        return self


def _wrapped(name: str) -> Callable[..., Any]:
    plain = getattr(int, name)

    def method(*args: Any) -> Any:
        found = plain(*args)
        return Int(found) if type(found) is int else found

    return method


for _name in ("add", "sub", "mul", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift"):
    setattr(Int, f"__{_name}__", _wrapped(f"__{_name}__"))
    setattr(Int, f"__r{_name}__", _wrapped(f"__r{_name}__"))
setattr(Int, "__neg__", _wrapped("__neg__"))  # noqa: B010


def counted(*ends: int) -> Iterator[Int]:
    return map(Int, range(*map(int, ends)))


class Layout:
    """Any layout: what a role has in registers is whole here, whichever thread has it."""

    version, warps_per_cta = [3, 0], [4, 1]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs

    @classmethod
    def get_default_for(cls, *_args: Any) -> Layout:
        return cls()


class Swizzled(Layout):
    """A layout that products take: 64 columns of 16 bits side by side, then the next 64."""


class Pointer:
    def __init__(self, data: Tensor, offset: Any = 0) -> None:
        self.data, self.offset = data, offset

    def __add__(self, by: Any) -> Pointer:
        return Pointer(self.data, self.offset + by)

    def __sub__(self, by: Any) -> Pointer:
        return Pointer(self.data, self.offset - by)


class Shared:
    """A view of shared memory, which other views see too.

    Attributes:
        elements: the memory from where the view begins.
        view: the elements of the view, or, if they are scattered, where they are among `elements`.
    """

    def __init__(self, elements: Tensor, view: Tensor, scattered: bool = False) -> None:
        self.elements, self.view, self.scattered = elements, view, scattered

    @classmethod
    def of(cls, elements: Tensor, shape: Sequence[int], layout: Any) -> Shared:
        """View flat memory in a shape: its elements lie in order, or as products take them."""
        shape = tuple(map(int, shape))
        if isinstance(layout, Swizzled) and elements.dtype in SIXTEEN_BITS and shape[-1] > 64:
            return cls(elements, swizzled(shape), scattered=True)
        return cls(elements, elements[: math.prod(shape)].view(shape))

    @classmethod
    def allocate(cls, dtype: torch.dtype, shape: Sequence[int], layout: Any) -> Shared:
        memory = torch.full((math.prod(map(int, shape)),), torch.nan if dtype.is_floating_point else 0, dtype=dtype)
        return cls.of(memory, shape, layout)

    @property
    def dtype(self) -> torch.dtype:
        return self.elements.dtype

    @property
    def shape(self) -> list[int]:
        return list(self.view.shape)

    def index(self, i: int) -> Shared:
        assert 0 <= int(i) < self.view.shape[0], f"slot {i} of {self.view.shape[0]}"
        return Shared(self.elements, self.view[int(i)], self.scattered)

    def reshape(self, shape: Sequence[int]) -> Shared:
        return Shared(self.elements, self.view.view(tuple(shape)), self.scattered)

    def permute(self, axes: Sequence[int]) -> Shared:
        return Shared(self.elements, self.view.permute(tuple(axes)), self.scattered)

    def slice(self, start: int, length: int, dim: int = 0) -> Shared:
        return Shared(self.elements, self.view.narrow(dim, int(start), length), self.scattered)

    def load(self, _layout: Any = None) -> Tensor:
        return self.elements[self.view] if self.scattered else self.view.clone()

    def store(self, x: Tensor) -> None:
        assert x.dtype == self.dtype, (x.dtype, self.dtype)
        assert list(x.shape) == self.shape, (x.shape, self.shape)
        if self.scattered:
            self.elements[self.view] = x
        else:
            self.view.copy_(x)


@functools.cache
def swizzled(shape: tuple[int, ...]) -> Tensor:
    """Where the elements of a matrix, or of several, lie: 64 columns side by side, then the next 64."""
    *lead, rows, columns = shape
    return torch.arange(math.prod(shape)).view(*lead, columns // 64, rows, 64).transpose(-2, -3).reshape(shape)


def static_assert(condition: bool, message: str = "") -> None:
    assert condition, message


def reinterpret(memory: Shared, dtype: torch.dtype, shape: Sequence[int], layout: Any) -> Shared:
    assert not memory.scattered
    storage = torch.empty(0, dtype=torch.uint8).set_(memory.elements.untyped_storage())
    start = memory.view.storage_offset() * memory.dtype.itemsize
    end = start + math.prod(map(int, shape)) * dtype.itemsize
    assert start % dtype.itemsize == 0
    assert end <= len(storage), "beyond the allocation"
    return Shared.of(storage[start:end].view(dtype), shape, layout)


def extreme(of_tensors: Any, of_ints: Any, a: Any, b: Any) -> Any:
    both_int = isinstance(a, int) and isinstance(b, int)
    return Int(of_ints(a, b)) if both_int else of_tensors(torch.as_tensor(a), torch.as_tensor(b))


def load(pointer: Pointer, mask: Any = None, other: Any = None) -> Tensor:
    at = torch.as_tensor(pointer.offset)
    if mask is None:
        return pointer.data[at]
    at, mask = torch.broadcast_tensors(at, torch.as_tensor(mask))
    loaded = pointer.data[torch.where(mask, at, 0)]
    return torch.where(mask, loaded, torch.as_tensor(other, dtype=loaded.dtype))


def store(pointer: Pointer, x: Any, mask: Any = True) -> None:
    at, x, mask = torch.broadcast_tensors(*map(torch.as_tensor, (pointer.offset, x, mask)))
    assert x.dtype == pointer.data.dtype, (x.dtype, pointer.data.dtype)
    pointer.data[at[mask]] = x[mask]


def split(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[..., 0], x[..., 1]


def upper(x: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype == torch.bfloat16:
        return (x.view(torch.int32) & -65536).view(torch.float32).to(dtype)
    near = x.to(dtype)
    return torch.where(near.float().abs() > x.abs(), near.nextafter(torch.zeros_like(near)), near)


def lower(x: Tensor, dtype: torch.dtype) -> Tensor:
    return (x - upper(x, dtype).float()).to(dtype)


def remainder(x: Tensor, dtype: torch.dtype) -> Tensor:
    return (x - x.to(dtype).float()).to(dtype)


def nearest(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype)


def nearest_of_negative(x: Tensor, dtype: torch.dtype) -> Tensor:
    return (-x).to(dtype)


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype).float()


def widened(x: Tensor) -> Tensor:
    return x.float()


def exchanged(low: Tensor, high: Tensor, lanes: int) -> Tensor:
    """Of (warps, 8, columns), a row for four lanes."""
    row = torch.arange(8)
    across = row ^ (int(lanes) // 4)
    return torch.where((across < row)[:, None], high + high[:, across], low + low[:, across])
