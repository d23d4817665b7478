"""Launches kernels with a driver that launches nothing, and compares what `enqueue` hands it with what Triton would.

Prints as JSON how many launches were compared and how many kernels Triton compiled for them.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# (Triton's language looks like Python, but its types are its own.)

from __future__ import annotations

import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.runtime.jit import JITFunction

from tflabench.kernels.common import launching
from tflabench.kernels.common.descriptors import Described, Unchecked
from tflabench.kernels.common.launching import COMPILED, enqueue
from tflabench.kernels.scalar.hopper.launch import BLOCKS, DescribedBlocks, descriptor

Launch = tuple[Any, int, tuple[Any, ...], dict[str, Any]]
ALIKE = [{"count": 1}, {"count": 5}, {"sharing": 5}]  # they run what the usual launch runs


class Driver:
    """Of a Hopper GPU; `launched` keeps the function, the programs and the arguments of each launch."""

    def __init__(self) -> None:
        self.launched: list[tuple[Any, ...]] = []
        self.hooks: tuple[Any, ...] = ()  # of the last launch: what they are told, and those before and after it
        self.device = self.functions = 0
        self.utils = SimpleNamespace(
            load_binary=self._load,
            unload_module=lambda module: None,
            get_device_properties=lambda _: {"max_shared_mem": 232448},
        )

    def launcher_cls(self, _source: Any, _metadata: Any) -> Any:
        def launch(*arguments: Any) -> None:
            self.hooks = arguments[6:9]
            programs, (stream, function), others = arguments[:3], arguments[3:5], arguments[9:]
            self.launched.append((programs, stream, function, *map(comparable, others)))

        return launch

    def _load(self, *_: Any) -> tuple[Any, ...]:
        self.functions += 1
        return "module", f"function {self.functions} on {self.device}", 0, 0, 1024

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return self.device

    def get_current_stream(self, device: int) -> str:
        return f"stream of {device}"


def comparable(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x.data_ptr(), x.dtype
    if isinstance(x, tuple):
        return tuple(map(comparable, x))
    if hasattr(x, "block_shape"):
        layout = getattr(x, "layout", None)
        return comparable(x.base), *x.shape, *x.strides, *x.block_shape, x.padding, repr(layout)
    return x


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["sharing"])
def one_of_each(
    x, y, tiles, n, scale, count, sharing, WIDTH: tl.constexpr, NAME: tl.constexpr, MORE: tl.constexpr = 1
):  # fmt: skip
    at = tl.arange(0, WIDTH)
    value = tl.load(x + at, mask=at < n, other=0.0).to(tl.float32) * scale + MORE * count // sharing
    if NAME == "exp":
        value = tl.exp(value)
    if y is not None:
        tl.store(y + at, value)
    tiles.store([0, 0, 0, 0], tiles.load([0, 0, 0, 0]))


@triton.jit
def another(x, y, tiles, n, scale, WIDTH: tl.constexpr, NAME: tl.constexpr, MORE: tl.constexpr = 1):
    tl.store(x, scale)


@gluon.jit(do_not_specialize=["n"])
def of_blocks(tiles, n, WIDTH: gl.constexpr):
    gl.allocate_shared_memory(tiles.dtype, tiles.block_type.shape, tiles.layout)


class Pair(NamedTuple):
    x: Any
    y: Any


class Counts(NamedTuple):
    items: int
    tiles: int


@gluon.jit(do_not_specialize=["counts"])  # which Triton heeds in no tuple
def of_tuples(tiles, pair, counts, n, CONFIG: gl.constexpr):
    at = gl.arange(0, 64, layout=gl.BlockedLayout([1], [32], [4], [0]))
    x = gl.load(pair.x + at, mask=at < counts.items, other=0.0).to(gl.float32) * CONFIG.factor
    if CONFIG.writes:
        gl.store(pair.y + at, x + counts.tiles + n)


@gluon.jit
def of_constants(tiles, call):
    of_tuples(tiles, call.pair, call.counts, call.counts.tiles, call.config)


class Call(NamedTuple):
    pair: Pair
    counts: Counts
    config: Any


@dataclass(frozen=True)
class Config:
    factor: float
    writes: bool


class Plain(Unchecked, TensorDescriptor):
    layout = gl.NVMMASharedLayout(swizzle_byte_width=64, element_bitwidth=16, rank=4)


def launches() -> list[Launch]:
    """One launch, and others that differ from it in one thing each."""
    x, half = torch.zeros(64), torch.zeros(1, 1, 64, 64, dtype=torch.float16)

    def tiles(rows: int = 16, dtype: torch.dtype = torch.float16) -> Described:
        return Described(half.to(dtype), (1, 1, 64, 64), (4096, 4096, 64, 1), [1, 1, rows, 16])

    usual: dict[str, Any] = {"x": x, "y": x, "tiles": tiles(), "n": 48, "scale": 0.5, "count": 48, "sharing": 48}
    constants: dict[str, Any] = {"WIDTH": 32, "NAME": "exp"}
    others = [
        {"x": torch.zeros(65)[1:]}, {"x": x.half()}, {"x": torch.nn.Parameter(x)}, {"y": None},
        {"n": 1}, {"n": 47}, {"n": 2**31}, {"n": 2**40}, {"n": 0}, {"scale": 1.0}, {"scale": 0.25},
        {"count": 2**40}, {"sharing": 1}, {"sharing": 2**40},
        {"tiles": tiles(32)}, {"tiles": tiles(dtype=torch.bfloat16)},
        {"WIDTH": 64}, {"NAME": "sig"}, {"MORE": 2}, {"num_warps": 2}, {"num_warps": 2, "launch_pdl": True},
    ]  # fmt: skip
    found: list[Launch] = []
    for change in ({}, *ALIKE, *others):
        arguments = tuple(change.get(name, value) for name, value in usual.items())
        options = constants | {name: value for name, value in change.items() if name not in usual}
        found.append((one_of_each, 7, arguments, options))
    found.append((one_of_each, 8, tuple(usual.values()), constants))
    found.append((another, 7, tuple(usual.values())[:5], constants))
    blocks = [descriptor(half), descriptor(half.bfloat16()), descriptor(half.repeat(1, 4, 1, 1), 4)]
    blocks.append(Plain(half, half.shape, half.stride(), BLOCKS[1]))
    assert isinstance(blocks[0], DescribedBlocks)
    found += [(of_blocks, 3, (x, n), {"WIDTH": 64, "maxnreg": 128}) for x in blocks for n in (5, 1, 16)]
    return found + launches_of_tuples(x, descriptor(half))


def launches_of_tuples(x: Tensor, tiles: TensorDescriptor) -> list[Launch]:
    """The same with tuples of pointers, counts and constants, and a class of constants.

    The last ones run what the first does: counts that are odd and above 1.
    """
    y, shifted = torch.zeros(64), torch.zeros(65)[1:]
    pair, counts = Pair(x, y), Counts(47, 5)
    constants = {"CONFIG": Config(0.5, True), "maxnreg": 128}
    others: list[tuple[Any, Any, int]] = [
        (Pair(x.half(), y), counts, 48), (Pair(shifted, y), counts, 48), (Pair(x, shifted), counts, 48),
        (pair, Counts(2**40 + 1, 5), 48), (pair, Counts(48, 5), 48), (pair, Counts(1, 5), 48), (pair, counts, 47),
    ]  # fmt: skip
    alike = [(pair, counts, 48), (pair, Counts(3, 5), 48), (pair, Counts(47, 33), 48), (Pair(y, x), counts, 48)]
    found: list[Launch] = []
    for config in (Config(0.25, True), Config(0.5, False)):
        found.append((of_tuples, 3, (tiles, *alike[0]), constants | {"CONFIG": config}))
    for config in (Config(0.5, True), Config(0.25, True)):
        found.append((of_constants, 3, (tiles, Call(pair, counts, gl.constexpr(config))), {"maxnreg": 128}))
    return found + [(of_tuples, 3, (tiles, *arguments), constants) for arguments in (*others, *alike)]


def main() -> None:
    driver: Any = Driver()
    triton.runtime.driver.set_active(driver)
    every, wanted = launches(), []

    def enqueued(kernel: Any, programs: int, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        before = len(driver.launched)
        enqueue(kernel, programs, *arguments, **options)
        assert len(driver.launched) == before + 1
        return driver.launched[-1]

    for driver.device in (0, 1):
        for kernel, programs, arguments, options in every:
            kernel[(programs,)](*arguments, **options, **COMPILED)
            wanted.append(driver.launched[-1])
            for _ in range(2):
                assert enqueued(kernel, programs, arguments, options) == wanted[-1], options
    assert len({launch[2] for launch in wanted}) == driver.functions
    of_blocks_last = [n for n, (kernel, *_) in enumerate(every) if kernel is of_blocks][-3:]
    for alike in (
        wanted[: 1 + len(ALIKE)], [wanted[n] for n in of_blocks_last], wanted[len(every) - 4 : len(every)]
    ):  # fmt: skip
        assert len({launch[2] for launch in alike}) == 1

    run, expected = JITFunction.run, iter(wanted)
    JITFunction.run = None  # type: ignore[assignment]   # what is like an earlier launch does without
    for driver.device in (0, 1):
        for launch in every:
            assert enqueued(*launch) == next(expected)
    assert driver.hooks == (None, None, None), driver.hooks
    for chain in (knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook):
        chain.add(print)
        assert enqueued(*every[0])[2:] == wanted[len(every)][2:]
        assert driver.hooks[1:] == (knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook)
        chain.remove(print)
    JITFunction.run = run

    launching.MOST = 3  # type: ignore[misc]
    launching._remembered.clear()
    for driver.device in (0, 1):
        for launch in every:
            assert enqueued(*launch) in wanted
            assert len(launching._remembered) <= launching.MOST
    print(json.dumps({"triton": triton.__version__, "launches": len(driver.launched), "kernels": driver.functions}))


if __name__ == "__main__":
    main()
