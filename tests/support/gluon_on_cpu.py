"""Runs the source of the Gluon kernels on the CPU, for Gluon has no interpreter: every role of a program is a greenlet.

What is modelled: the arithmetic of blocks, dtypes and addresses in shared and global memory, TMA (bounds included),
mbarriers with their phases and bytes, and in what order asynchronous things may happen. The order is drawn at random:
roles are switched at every barrier, and one of them may be late for a while; a load by TMA arrives when it likes, a
store by TMA reads its source only when the role waits for it, a product its operands likewise. So a buffer that is used
too early or given back too soon gives wrong numbers, and a barrier too few a deadlock. Kernels run one after the other,
but what one writes that may still run when the next one starts must not be read before that has waited.

What is not: threads and layouts within a role (a role is one here), inline assembly, what Triton and ptxas make
of it all. That takes a GPU.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from gluon_values import (
    SIXTEEN_BITS,
    Int,
    Layout,
    Pointer,
    Shared,
    Swizzled,
    counted,
    exchanged,
    extreme,
    load,
    lower,
    nearest,
    nearest_of_negative,
    reinterpret,
    remainder,
    rounded,
    split,
    static_assert,
    store,
    upper,
    widened,
)
from greenlet import getcurrent, greenlet
from torch import Tensor
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.core import constexpr

import tflabench.kernels.delta.hopper as delta_hopper
import tflabench.kernels.gla.hopper as gla_hopper
import tflabench.kernels.kda.hopper as kda_hopper
import tflabench.kernels.scalar.hopper as hopper
from tflabench.kernels.common import device
from tflabench.kernels.common.cover import cdiv, next_power_of_2
from tflabench.kernels.common.sizes import Device
from tflabench.kernels.scalar.hopper import backward, config, documents, segment_states, tiles
from tflabench.kernels.scalar.hopper.config import CarryConfig
from tflabench.kernels.scalar.hopper.segment_states import CarriedStates

SHARED = (
    "conversions",
    "tiles",
    "pipeline",
    "state",
    "schedule",
    "row_sums",
    "normaliser",
    "state_walk",
)  # in the order in which they import one another
KERNELS = {
    "walk_forward": "forward", "walk_forward_normalised": "forward", "walk_backward_dv": "backward_dv",
    "walk_backward_dqk": "backward_dqk", "walk_backward_dqk_with_sums": "backward_dqk", "pair": "backward_dkdv",
    "walk_heads": "packed_heads", "accumulate": "segment_states", "gradients": "tile_gradients",
}  # fmt: skip


class Family(NamedTuple):
    """Kernels of a folder: those by name with their source, and all sources in the order in which they import."""

    package: str
    kernels: dict[str, str]
    sources: tuple[str, ...]

    @classmethod
    def of(cls, package: str, shared: tuple[str, ...], kernels: dict[str, str], *before: str) -> Family:
        names = dict.fromkeys((*shared, *kernels.values()))
        return cls(package, kernels, (*before, *(f"{package}.{name}" for name in names)))


SCALAR = Family.of(hopper.__name__, SHARED, KERNELS)
BENEATH = tuple(f"{hopper.__name__}.{name}" for name in ("conversions", "tiles", "pipeline", "state", "schedule"))
DELTA = Family.of(
    delta_hopper.__name__, ("tiles", "schedule", "walk"),
    {"make_inverses": "inverses", "walk_outputs": "walks", "walk_values": "walks",
     "walk_queries_keys": "backward_dqk"},
    *BENEATH,
)  # fmt: skip
KDA = Family.of(
    kda_hopper.__name__, ("tiles",),
    {"make_operands": "operands", "walk_outputs_of_channels": "walks", "walk_values_of_channels": "walks",
     "gradients_of_tiles": "gradients"},
    *DELTA.sources,
)  # fmt: skip
GLA = Family.of(
    gla_hopper.__name__, ("walk",),
    {"walk_columns": "columns", "walk_channels": "channels", "add_pairs_of_tiles": "pairs"},
    *KDA.sources, *(f"{delta_hopper.__name__}.{name}" for name in ("walk", "backward_dqk")),
)  # fmt: skip
OF_ONE_ROLE = ("make_inverses", "make_operands", "gradients_of_tiles", "add_pairs_of_tiles")  # without partitions
LATE_ROLE_CHANGES = 1 / 60  # of the turns of all roles, of which a tile takes some 40


TOO_EARLY = "reads what a kernel before it may still write"


class Deadlock(Exception):
    pass


def overlap(x: Tensor, y: Tensor) -> bool:
    (first, end), (other_first, other_end) = map(span, (x, y))
    return first < other_end and other_first < end


def span(x: Tensor) -> tuple[int, int]:
    """The first byte of a tensor, and the one after its last."""
    elements = 1 + sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + x.element_size() * elements


class Product:
    """One that runs: nothing may touch its accumulators until it has been waited for."""

    def __init__(self, a: Any, b: Shared, accumulators: Any, use_acc: bool) -> None:
        self.a, self.b, self.accumulators, self.use_acc = a, b, accumulators, use_acc
        self.result: Tensor | None = None

    def finish(self) -> Tensor:
        if self.result is None:
            a, b = (x.load() if isinstance(x, Shared) else x for x in (self.a, self.b))
            assert a.dtype == b.dtype, (a.dtype, b.dtype)
            assert a.dtype in SIXTEEN_BITS, a.dtype
            result = a.float() @ b.float()
            if self.use_acc:
                before = self.accumulators
                result = result + (before.finish() if isinstance(before, Product) else before)
            self.result = result
            return result
        return self.result


class Role(greenlet):
    """A partition of a program.

    Attributes:
        waited: whether kernels before this one have ended.
    """

    def __init__(self, function: Callable[..., None], args: Sequence[Any], waited: bool) -> None:
        super().__init__()
        self.function, self.args, self.waited = function, args, waited
        self.can_go: Callable[[], bool] = lambda: True
        self.products: list[Product] = []
        self.stores: list[Callable[[], None]] = []

    def run(self) -> None:
        self.function(*self.args)
        assert not [product for product in self.products if product.result is None], "products not waited for"
        self.finish_stores(0)

    def pause(self, can_go: Callable[[], bool] = lambda: True) -> None:
        self.can_go = can_go
        assert self.parent
        self.parent.switch()

    def finish_stores(self, pending: int) -> None:
        while len(self.stores) > pending:
            self.stores.pop(0)()


class Program:
    """One of a grid: its barriers, what of TMA is on its way, and its roles, of which one runs at a time."""

    def __init__(self, number: int, count: int, choice: random.Random, waited: bool) -> None:
        self.number, self.count, self.choice, self.waited = number, count, choice, waited
        self.barriers: dict[int, SimpleNamespace] = {}
        self.loads: list[Callable[[], None]] = []

    @staticmethod
    def key(memory: Shared) -> int:
        assert memory.view.numel() == 1, "one barrier at a time"
        return memory.view.data_ptr()

    def barrier(self, memory: Shared) -> SimpleNamespace:
        return self.barriers[self.key(memory)]

    def run(self, functions: Sequence[tuple[Callable[..., None], Sequence[Any]]]) -> None:
        roles = [Role(function, args, self.waited) for function, args in functions]
        late = None  # a role that goes when no other can, for a while: what waits for it must really wait
        while left := [role for role in roles if not role.dead]:
            if self.loads and self.choice.random() < 0.5:
                self.loads.pop(self.choice.randrange(len(self.loads)))()
            able = [role for role in left if role.can_go()]
            if self.choice.random() < LATE_ROLE_CHANGES:
                late = self.choice.choice([None, *roles])
            if able:
                self.choice.choice([role for role in able if role is not late] or able).switch()
            elif self.loads:
                self.loads.pop(0)()
            else:
                raise Deadlock(f"{len(left)} of {len(roles)} roles wait for one another")


class Kernel:
    """Called as a Gluon kernel is: kernel[grid](*args, **constants)."""

    def __init__(self, function: Callable[..., None], machine: Machine) -> None:
        self.function, self.machine = function, machine

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        options = ("num_warps", "maxnreg", "launch_pdl", "ptx_options", "enable_fp_fusion")

        def run(*args: Any, **named: Any) -> None:
            constants = {name: x for name, x in named.items() if name not in options}
            machine = self.machine
            machine.written, machine.next_is_after = {}, not named.get("launch_pdl")
            for number in range(grid[0]):
                machine.program = Program(number, grid[0], machine.choice, waited=not named.get("launch_pdl"))
                with torch.no_grad():
                    call = functools.partial(self.function, **constants)
                    if self.function.__name__ in OF_ONE_ROLE:
                        machine.program.run([(call, tuple(map(argument, args)))])
                    else:
                        call(*map(argument, args))
            machine.unfinished = [] if machine.next_is_after else machine.unfinished
            machine.unfinished = [*machine.unfinished, *machine.written.values()]

        return run


def argument(x: Any) -> Any:
    if isinstance(x, Tensor):
        return Pointer(x.view(-1))
    if isinstance(x, tuple):
        return type(x)(*map(argument, x)) if hasattr(x, "_fields") else tuple(map(argument, x))
    if isinstance(x, constexpr):
        return x.value
    if isinstance(x, int):
        return Int(x)
    if isinstance(x, TensorDescriptor):
        tensor = x.base.as_strided(tuple(x.shape), tuple(x.strides))
        block = tuple(x.block_shape)
        of_block = SimpleNamespace(shape=list(block))
        return SimpleNamespace(tensor=tensor, block=block, block_type=of_block, dtype=tensor.dtype, layout=Swizzled())
    return x


def cut_out(desc: Any, coordinates: Sequence[int]) -> tuple[Tensor, tuple[slice, ...]]:
    """What of a block lies within the tensor, and where of the block that is."""
    inside, kept = [], []
    for at, length, size in zip(map(int, coordinates), desc.block, desc.tensor.shape, strict=True):
        n = max(0, min(length, size - at))
        inside.append(slice(at, at + n) if n else slice(0, 0))
        kept.append(slice(0, n))
    return desc.tensor[tuple(inside)], tuple(kept)


class Adapted(ast.NodeTransformer):
    """A source as tensors of PyTorch take it: x += y is another x, as values of a kernel never change."""

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        assert isinstance(node.target, ast.Name)
        before = ast.Name(node.target.id, ast.Load())
        return ast.Assign([node.target], ast.BinOp(before, node.op, self.visit(node.value)))

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        of_type = isinstance(node.value, ast.Attribute) and node.value.attr == "type"
        return ast.Name("any_layout", ast.Load()) if of_type else self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "split":
            return ast.Call(ast.Name("split", ast.Load()), [self.visit(node.func.value)], [])
        return self.generic_visit(node)


@functools.cache
def compiled(text: str, path: Path) -> Any:
    return compile(ast.fix_missing_locations(Adapted().visit(ast.parse(text))), str(path), "exec")


class Machine:
    """The kernels of a family by name, and how they run.

    Args:
        seed: of the order in which things happen; the same one gives the same order.
        newer: with the operands that workarounds.py gives Triton 3.7 and later.
        edit: (source, text) -> text, to try what a mistake does; one of another family is "delta/its name".

    Attributes:
        unfinished: what kernels write that may still run when the next one starts.
        written: by address, what the kernel that runs has written.
        next_is_after: whether the next kernel starts when all before the one that runs have ended.
    """

    def __init__(
        self, seed: int = 0, newer: bool = True, edit: Callable[[str, str], str] | None = None, family: Family = SCALAR
    ) -> None:
        self.newer = newer
        self.edit = edit or (lambda _name, text: text)
        self.choice = random.Random(seed)
        self.program = Program(0, 1, self.choice, waited=True)
        self.unfinished: list[Tensor] = []
        self.written: dict[int, Tensor] = {}
        self.next_is_after = True
        self.family = family
        self.modules: dict[str, Any] = {f"{hopper.__name__}.workarounds": self._workarounds(newer)}
        for module in family.sources:
            self.modules[module] = self._load(module)
        self.kernels = {
            name: Kernel(getattr(self.modules[f"{family.package}.{module}"], name), self)
            for name, module in family.kernels.items()
        }

    # --- what a source sees -------------------------------------------------------------------------------------------

    def _load(self, full_name: str) -> Any:
        package, _, name = full_name.rpartition(".")
        path = Path(str(importlib.import_module(package).__file__)).with_name(f"{name}.py")
        source = name if package == hopper.__name__ else f"{package.split('.')[-2]}/{name}"
        known = {
            "triton": SimpleNamespace(constexpr_function=lambda f: f, jit=self._jit),
            "triton.language.core": SimpleNamespace(_aggregate=lambda cls: cls, base_value=object),
            "triton.language": SimpleNamespace(
                language=SimpleNamespace(
                    constexpr=None,  # of `carry`, which is Triton
                    range=lambda *ends, disable_licm: counted(*ends),
                )
            ),
            "triton.experimental": SimpleNamespace(gluon=SimpleNamespace(jit=self._jit)),
            "triton.experimental.gluon": SimpleNamespace(language=self._language()),
            "triton.experimental.gluon.language.nvidia.hopper": self._hopper(),
            "triton.experimental.gluon.language.nvidia.ampere": SimpleNamespace(mma_v2=self._multiply_at_once),
        }

        def importer(module: str, _globals: Any = None, _locals: Any = None, names: Any = (), level: int = 0) -> Any:
            if module == "__future__":
                return __import__(module, fromlist=names)
            module = f"{package}.{module}" if level else module
            found = known.get(module, self.modules.get(module))
            return __import__(module, fromlist=names) if found is None else found  # what the host's part imports

        inside = vars(builtins) | {"__import__": importer, "range": counted}
        names: dict[str, Any] = {"__name__": f"on_cpu.{name}", "__builtins__": inside}
        names |= {"split": split, "any_layout": Layout()}
        exec(compiled(self.edit(source, path.read_text()), path), names)
        found = SimpleNamespace(**names)
        assembly: dict[str, tuple[Callable[..., Any], ...]] = {
            "conversions": (upper, lower, nearest, nearest_of_negative, remainder, rounded, widened),
            "row_sums": (exchanged,),
            "backward_dkdv": (self.launched,),
            "pipeline": (self.publish_stores, self.wait_for_stores),
        }
        for function in assembly.get(name, ()):
            names[function.__name__] = function
            setattr(found, function.__name__, function)
        return found

    def publish_stores(self, pointer: Pointer, count: Int) -> None:
        self._role().finish_stores(0)
        store(pointer, torch.tensor(int(count), dtype=torch.int32))

    @staticmethod
    def wait_for_stores(pointer: Pointer, count: Int) -> None:
        """Programs run one after the other here, so what is waited for must be there."""
        assert int(load(pointer)) >= int(count), "waits for a program that runs later"

    def launched(self, _items: int, register: str) -> Int:
        return Int({"ctaid": self.program.number, "nctaid": self.program.count}[register])

    @staticmethod
    def _jit(function: Any = None, **_: Any) -> Any:
        return function if function is not None else lambda f: f

    def _language(self) -> Any:
        return SimpleNamespace(
            constexpr=lambda x: x,
            tensor=Tensor, shared_memory_descriptor=Shared, tuple=tuple, to_tensor=Int,
            static_range=counted,
            static_assert=static_assert,
            float32=torch.float32, bfloat16=torch.bfloat16, float16=torch.float16, int32=torch.int32, int64=torch.int64,
            program_id=lambda _axis: Int(self.program.number),
            num_programs=lambda _axis: Int(self.program.count),
            warp_specialize=lambda roles, _warps, _registers: self.program.run(roles),
            allocate_shared_memory=lambda dtype, shape, layout, initial=None: Shared.allocate(dtype, shape, layout),
            zeros=lambda shape, dtype, layout=None: torch.zeros(tuple(map(int, shape)), dtype=dtype),
            full=lambda shape, x, dtype, layout=None: torch.full(tuple(map(int, shape)), float(x), dtype=dtype),
            arange=lambda start, end, layout=None: torch.arange(int(start), int(end)),
            where=lambda condition, a, b: torch.where(condition, a, b),
            exp2=lambda x: torch.exp2(torch.as_tensor(x)), log2=torch.log2, abs=torch.abs,
            maximum=lambda a, b: extreme(torch.maximum, max, a, b),
            minimum=lambda a, b: extreme(torch.minimum, min, a, b),
            sum=lambda x, axis: torch.sum(x, dim=axis),
            min=lambda x, axis: torch.amin(x, dim=axis), max=lambda x, axis: torch.amax(x, dim=axis), sqrt=torch.sqrt,
            associative_scan=lambda x, axis, add: torch.cumsum(x, axis),
            join=lambda a, b: torch.stack([a, b], -1),
            convert_layout=lambda x, layout, assert_trivial=False: x,
            load=self._load_global, store=self._store_global,
            SliceLayout=Layout, BlockedLayout=Layout, NVMMADistributedLayout=Layout, DotOperandLayout=Layout,
            SwizzledSharedLayout=Layout, NVMMASharedLayout=Swizzled,
        )  # fmt: skip

    def _hopper(self) -> Any:
        return SimpleNamespace(
            fence_async_shared=lambda: None,
            warpgroup_mma=self._multiply,
            tma=SimpleNamespace(store_wait=lambda pendings: self._role().finish_stores(int(pendings))),
            mbarrier=SimpleNamespace(
                MBarrierLayout=Layout, init=self._init, wait=self._wait, arrive=self._arrive, expect=self._expect
            ),
        )

    def _workarounds(self, newer: bool) -> Any:
        return SimpleNamespace(
            ASSEMBLY={},
            HOISTS=newer,
            WIDEST_OPERAND=2 if newer else 4,
            reinterpret=reinterpret,
            barrier=lambda: self._role().pause(),
            wait_for_products=self._wait_for_products,
            wait_for_kernel_before=lambda: self._wait_for_kernel_before_unless(False),
            wait_for_kernel_before_unless=self._wait_for_kernel_before_unless,
            let_next_kernel_start=self._let_next_kernel_start,
            zero_from_here=lambda _i: Int(0),
            zero_in_round=lambda _j: Int(0),
            opaque_zero=lambda _i, _n=0: Int(0),
            uniform=lambda i: i,
            pinned=lambda x: x,
            prefetch=lambda _ptr, _bytes: None,
            tma_load=self._tma_load,
            tma_store=lambda desc, at, source: self._tma_store(desc, at, source, add=False),
            tma_add=lambda desc, at, source: self._tma_store(desc, at, source, add=True),
        )

    # --- what happens -------------------------------------------------------------------------------------------------

    @staticmethod
    def _role() -> Role:
        role = getcurrent()
        assert isinstance(role, Role)
        return role

    def _here(self) -> Role | Program:
        here = getcurrent()
        return here if isinstance(here, Role) else self.program

    def _wait_for_kernel_before_unless(self, condition: Any) -> None:
        self._here().waited |= not condition

    def _let_next_kernel_start(self) -> None:
        self.next_is_after |= self._here().waited

    def _may_read(self, x: Tensor) -> bool:
        return self._here().waited or not any(overlap(x, y) for y in self.unfinished)

    def _load_global(self, pointer: Pointer, mask: Any = None, other: Any = None) -> Tensor:
        assert self._may_read(pointer.data) or not (mask is None or torch.as_tensor(mask).any()), TOO_EARLY
        return load(pointer, mask, other)

    def _store_global(self, pointer: Pointer, x: Any, mask: Any = True) -> None:
        if torch.as_tensor(mask).any():
            self.written[pointer.data.data_ptr()] = pointer.data
        store(pointer, x, mask)

    def _init(self, memory: Shared, count: int) -> None:
        self.program.barriers[self.program.key(memory)] = SimpleNamespace(
            count=int(count), missing=int(count), bytes=0, phase=0, memory=memory
        )

    @staticmethod
    def _completed(barrier: SimpleNamespace) -> None:
        assert barrier.missing >= 0, "more arrivals than the barrier counts"
        if barrier.missing == 0 and barrier.bytes == 0:
            barrier.phase ^= 1
            barrier.missing = barrier.count

    def _wait(self, memory: Shared, phase: int) -> None:
        barrier = self.program.barrier(memory)
        self._role().pause(lambda: barrier.phase != int(phase))

    def _arrive(self, memory: Shared, count: int = 1, pred: Any = True) -> None:
        if pred:
            barrier = self.program.barrier(memory)
            barrier.missing -= int(count)
            self._completed(barrier)
        self._role().pause()

    def _expect(self, memory: Shared, count: int) -> None:
        barrier = self.program.barrier(memory)
        barrier.bytes += int(count)
        barrier.missing -= 1
        self._completed(barrier)

    def _tma_load(self, desc: Any, at: Sequence[int], memory: Shared, target: Shared) -> None:
        barrier = self.program.barrier(memory)
        assert self._may_read(desc.tensor), TOO_EARLY
        found, kept = cut_out(desc, at)

        def arrive() -> None:
            block = torch.zeros(desc.block, dtype=desc.dtype)
            block[kept] = found
            target.store(block.reshape(target.shape))
            barrier.bytes -= block.numel() * block.element_size()
            self._completed(barrier)

        self.program.loads.append(arrive)

    def _tma_store(self, desc: Any, at: Sequence[int], source: Shared, add: bool) -> None:
        target, kept = cut_out(desc, at)
        self.written[desc.tensor.data_ptr()] = desc.tensor

        def leave() -> None:
            block = source.load().reshape(desc.block)[kept]
            target.copy_(target + block if add else block)

        self._role().stores.append(leave)

    def _multiply(self, a: Any, b: Shared, acc: Any, *, use_acc: bool = True, is_async: bool = False) -> Product:
        assert is_async
        product = Product(a, b, acc, bool(use_acc))
        self._role().products.append(product)
        return product

    @staticmethod
    def _multiply_at_once(a: Tensor, b: Tensor, acc: Tensor) -> Tensor:
        return acc + a.float() @ b.float()

    def _wait_for_products(self, num_outstanding: int, deps: Sequence[Any]) -> Any:
        role = self._role()
        role.pause()
        done = len(role.products) - int(num_outstanding)
        for product in role.products[: max(done, 0)]:
            product.finish()
        role.products = role.products[max(done, 0) :]
        results = tuple(x.result if isinstance(x, Product) and x.result is not None else x for x in deps)
        return results[0] if len(results) == 1 else results


interpreted: Any = segment_states.carry  # what Triton's decorator returns has no types that a Python checker knows


class Carry:
    """The Triton kernel beside them, interpreted: a state a program, without what only a GPU has.

    It waits for those before it.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def __getitem__(self, grid: tuple[int]) -> Any:
        def run(
            states: CarriedStates, g: Tensor, elements: int, *args: Any, config: CarryConfig, launch_pdl: bool,
            **options: Any,
        ) -> None:  # fmt: skip
            assert config.overlap
            assert launch_pdl
            rows, left = divmod(grid[0], cdiv(elements, config.block))
            assert not left
            config = replace(config, overlap=False, block=next_power_of_2(elements))
            interpreted[(rows,)](states, g, elements, *args, config=config, **options)
            self.machine.unfinished = [x for x in (states.starts, states.after) if x is not None]

        return run


def run_on_chip(multiprocessors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (device, documents):
        monkeypatch.setattr(module, "figures", lambda _device: Device(90, multiprocessors))


def replace_kernels(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kernel in machine.kernels.items():
        package, kernels, _ = machine.family
        monkeypatch.setattr(f"{package}.{kernels[name]}.{name}", kernel)


def launch_delta_on(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the operations of the delta rule run the fused kernels on a machine, as if there were a Hopper GPU."""
    replace_kernels(machine, monkeypatch)
    monkeypatch.setattr(f"{delta_hopper.__name__}.chunkwise.refuses_hardware", lambda _q, _dtypes: None)
    monkeypatch.setattr(device, "figures", lambda _device: Device(90, 3))  # fewer than work items


def launch_gla_on(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same of Gated Linear Attention, whose scores of what has closed are made by a kernel of KDA."""
    replace_kernels(machine, monkeypatch)
    replace_kernels(Machine(family=KDA), monkeypatch)
    monkeypatch.setattr(f"{gla_hopper.__name__}.chunkwise.refuses_hardware", lambda _q, _dtypes: None)
    monkeypatch.setattr(device, "figures", lambda _device: Device(90, 3))


def launch_on(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the host code launch the kernels of a machine, with Triton's, which are interpreted, beside them."""
    replace_kernels(machine, monkeypatch)
    monkeypatch.setattr(config, "HOISTS", machine.newer)
    monkeypatch.setattr(tiles, "WIDEST_OPERAND", 2 if machine.newer else 4)
    config.WalkConfig.of.cache_clear()  # of the other Triton
    monkeypatch.setattr(segment_states, "carry", Carry(machine))
    monkeypatch.setattr(documents, "ROWS", 64)  # a program, of which each costs the interpreter as much

    def converted(skip: Tensor | None) -> Tensor | None:
        """What `floats` makes where it has to convert: PyTorch's kernel may still run too when the next one starts."""
        found = None if skip is None else skip.clone()
        machine.unfinished += [] if found is None else [found]
        return found

    monkeypatch.setattr(backward, "floats", converted)
    run_on_chip(3, monkeypatch)  # fewer multiprocessors than work items: programs take several
