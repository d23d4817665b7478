"""What the roles of a Gluon kernel on the CPU compute with: integers, layouts, blocks, memory with its addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
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


class Value(Tensor):
    """What is in registers. Like all values of a kernel it never changes: x += y is another x."""

    __iadd__, __isub__, __imul__ = Tensor.__add__, Tensor.__sub__, Tensor.__mul__

    @property
    def type(self) -> Any:
        return SimpleNamespace(layout=Layout())

    def split(self) -> tuple[Tensor, Tensor]:
        return self[..., 0], self[..., 1]


def value(x: Any, dtype: torch.dtype | None = None) -> Value:
    return torch.as_tensor(x, dtype=dtype).as_subclass(Value)


class Pointer:
    def __init__(self, data: Tensor, offset: Any = 0) -> None:
        self.data, self.offset = data, offset

    def __add__(self, by: Any) -> Pointer:
        return Pointer(self.data, self.offset + by)

    def __sub__(self, by: Any) -> Pointer:
        return Pointer(self.data, self.offset - by)


class Shared:
    """A view of shared memory: where the elements of a tensor are, counted in such elements."""

    def __init__(self, memory: Tensor, dtype: torch.dtype, places: Tensor) -> None:
        self.memory, self.dtype, self.places = memory, dtype, places

    @classmethod
    def allocate(cls, dtype: torch.dtype, shape: Sequence[int], layout: Any) -> Shared:
        places = order(shape, dtype, layout)
        memory = torch.full((places.numel(),), torch.nan if dtype.is_floating_point else 0, dtype=dtype)
        return cls(memory.view(torch.uint8), dtype, places)

    @property
    def elements(self) -> Tensor:
        return self.memory.view(self.dtype)

    @property
    def shape(self) -> list[int]:
        return list(self.places.shape)

    def index(self, i: int) -> Shared:
        assert 0 <= int(i) < self.places.shape[0], f"slot {i} of {self.places.shape[0]}"
        return Shared(self.memory, self.dtype, self.places[int(i)])

    def reshape(self, shape: Sequence[int]) -> Shared:
        return Shared(self.memory, self.dtype, self.places.reshape(tuple(shape)))

    def permute(self, axes: Sequence[int]) -> Shared:
        return Shared(self.memory, self.dtype, self.places.permute(tuple(axes)))

    def slice(self, start: int, length: int, dim: int = 0) -> Shared:
        return Shared(self.memory, self.dtype, self.places.narrow(dim, int(start), length))

    def load(self, _layout: Any = None) -> Value:
        return self.elements[self.places].as_subclass(Value)

    def store(self, x: Tensor) -> None:
        assert x.dtype == self.dtype, (x.dtype, self.dtype)
        assert list(x.shape) == self.shape, (x.shape, self.shape)
        self.elements[self.places] = x.as_subclass(Tensor)


def order(shape: Sequence[int], dtype: torch.dtype, layout: Any) -> Tensor:
    """Where the elements of an allocation lie."""
    shape = tuple(map(int, shape))
    places = torch.arange(torch.Size(shape).numel())
    if isinstance(layout, Swizzled) and dtype in SIXTEEN_BITS and shape[-1] > 64:
        *lead, rows, columns = shape
        return places.view(*lead, columns // 64, rows, 64).transpose(-2, -3).reshape(shape)
    return places.view(shape)


def static_assert(condition: bool, message: str = "") -> None:
    assert condition, message


def reinterpret(memory: Shared, dtype: torch.dtype, shape: Sequence[int], layout: Any) -> Shared:
    start = int(memory.places.min()) * memory.dtype.itemsize
    places = order(shape, dtype, layout)
    assert start % dtype.itemsize == 0
    assert start + places.numel() * dtype.itemsize <= memory.memory.numel(), "beyond the allocation"
    return Shared(memory.memory, dtype, places + start // dtype.itemsize)


def extreme(of_tensors: Any, of_ints: Any, a: Any, b: Any) -> Any:
    return Int(of_ints(a, b)) if isinstance(a, int) and isinstance(b, int) else of_tensors(value(a), value(b))


def load(pointer: Pointer, mask: Any = None, other: Any = None) -> Value:
    at = torch.as_tensor(pointer.offset)
    if mask is None:
        return pointer.data[at].as_subclass(Value)
    at, mask = torch.broadcast_tensors(at.as_subclass(Tensor), torch.as_tensor(mask).as_subclass(Tensor))
    found = pointer.data[torch.where(mask, at, 0)]
    return torch.where(mask, found, torch.as_tensor(other, dtype=found.dtype)).as_subclass(Value)


def store(pointer: Pointer, x: Any, mask: Any = True) -> None:
    at, x, mask = torch.broadcast_tensors(
        torch.as_tensor(pointer.offset).as_subclass(Tensor),
        torch.as_tensor(x).as_subclass(Tensor),
        torch.as_tensor(mask).as_subclass(Tensor),
    )
    assert x.dtype == pointer.data.dtype, (x.dtype, pointer.data.dtype)
    pointer.data[at[mask]] = x[mask]


def upper(x: Tensor, dtype: torch.dtype) -> Value:
    x = x.as_subclass(Tensor)
    if dtype == torch.bfloat16:
        return value((x.view(torch.int32) & -65536).view(torch.float32).to(dtype))
    near = x.to(dtype)
    return value(torch.where(near.float().abs() > x.abs(), near.nextafter(torch.zeros_like(near)), near))


def lower(x: Tensor, dtype: torch.dtype) -> Value:
    return value((x - upper(x, dtype).float()).to(dtype))


def remainder(x: Tensor, dtype: torch.dtype) -> Value:
    return value((x - x.to(dtype).float()).to(dtype))


def nearest(x: Tensor, dtype: torch.dtype) -> Value:
    return value(x.to(dtype))


def rounded(x: Tensor, dtype: torch.dtype) -> Value:
    return value(x.to(dtype).float())


def widened(x: Tensor) -> Value:
    return value(x.float())


def exchanged(low: Tensor, high: Tensor, lanes: int) -> Value:
    """Of (warps, 8, columns), a row for four lanes."""
    row = torch.arange(8)
    across = row ^ (int(lanes) // 4)
    return value(torch.where((across < row)[:, None], high + high[:, across], low + low[:, across]))
