# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""Hand buffers in shared memory from one partition of a program to another, and let kernels overlap."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.language.core import _aggregate, base_value

from .workarounds import let_next_kernel_start, wait_for_kernel_before_unless


def aggregate(cls):
    """Make a class a value of kernels that is constructed from its fields, as Triton itself does from 3.9 on."""
    fields = tuple(cls.__annotations__)

    def __init__(self, *args, **named):  # noqa: N807  of the class that is decorated
        given = {**dict(zip(fields, args, strict=False)), **named}
        for name in fields:
            value = given[name]
            setattr(self, name, value if isinstance(value, base_value) else gl.constexpr(value))

    __init__.__triton_builtin__ = True
    cls.__init__ = __init__
    return _aggregate(cls)


@aggregate
class Cursor:
    """A place in a ring: its slot, and the phase that the slot's barriers are in."""

    slot: gl.tensor
    phase: gl.tensor


@aggregate
class Ring:
    """Barriers of a ring of slots that a producer fills and consumers drain, one after the other."""

    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor
    num_slots: gl.constexpr

    @gluon.jit
    def at(self, i):
        """Return the place of the i-th fill."""
        return Cursor(i % self.num_slots, (i // self.num_slots) & 1)

    @gluon.jit
    def begin(self):
        """Return the place of the first fill."""
        return Cursor(gl.to_tensor(0), gl.to_tensor(0))

    @gluon.jit
    def next(self, cursor):
        """Return the place after a cursor.

        `at` makes both numbers of one counter, for which addresses made of it are kept in registers: a partition of few
        registers spills with it. One of many, whose products use such addresses, is serialised by ptxas with `next`
        (C7512, d_qk = 256).
        """
        slot = cursor.slot + 1
        return Cursor(slot % self.num_slots, cursor.phase ^ (slot // self.num_slots))

    @gluon.jit
    def producer_acquire(self, cursor):
        """Wait until all consumers have released the slot."""
        mbarrier.wait(self.empty.index(cursor.slot), cursor.phase ^ 1)

    @gluon.jit
    def producer_commit(self, cursor):
        """Hand the slot to the consumers."""
        mbarrier.arrive(self.full.index(cursor.slot), count=1)

    @gluon.jit
    def consumer_wait(self, cursor):
        """Wait until the slot is full."""
        mbarrier.wait(self.full.index(cursor.slot), cursor.phase)

    @gluon.jit
    def consumer_release(self, cursor):
        """Give the slot back to the producer."""
        mbarrier.arrive(self.empty.index(cursor.slot), count=1)


@gluon.jit
def allocate_ring(num_slots: gl.constexpr, num_consumers: gl.constexpr, num_arrivals: gl.constexpr = 1):
    """Return a ring of empty slots, each full after `num_arrivals` and empty again after `num_consumers` releases."""
    full = gl.allocate_shared_memory(gl.int64, [num_slots, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [num_slots, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(num_slots):
        mbarrier.init(full.index(i), count=num_arrivals)
        mbarrier.init(empty.index(i), count=num_consumers)
    return Ring(full, empty, num_slots)


@aggregate
class Signal:
    """Barriers of a ring of slots that partitions fill; that they have been read shows in other ways."""

    full: gl.shared_memory_descriptor

    @gluon.jit
    def arrive(self, cursor):
        """Say that the slot is full."""
        mbarrier.arrive(self.full.index(cursor.slot), count=1)

    @gluon.jit
    def wait(self, cursor):
        """Wait until the slot is full."""
        mbarrier.wait(self.full.index(cursor.slot), cursor.phase)


@gluon.jit
def allocate_signal(num_slots: gl.constexpr, num_arrivals: gl.constexpr = 1):
    """Return the signals of a ring of empty slots, each full after `num_arrivals`."""
    full = gl.allocate_shared_memory(gl.int64, [num_slots, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(num_slots):
        mbarrier.init(full.index(i), count=num_arrivals)
    return Signal(full)


@gluon.jit
def publish_stores(ptr, count):
    """Write count to ptr, int32, once what this partition has given to TMA is in memory; for `wait_for_stores`.

    `tma.store_wait` waits until shared memory has been read, not until the stores can be seen. One warp.
    """
    asm: gl.constexpr = """cp.async.bulk.wait_group 0; bar.warp.sync 0xffffffff; fence.proxy.async;
        fence.acq_rel.gpu; st.relaxed.gpu.global.s32 [$1], $2; mov.b32 $0, 0;"""
    gl.inline_asm_elementwise(asm, "=r,l,r", [ptr, count], gl.int32, is_pure=False, pack=1)


@gluon.jit
def wait_for_stores(ptr, count):
    """Wait until another program has written at least count to ptr: TMA may then add to what that one has stored."""
    asm: gl.constexpr = """{ .reg .pred p; .reg .s32 seen; again: ld.acquire.gpu.global.s32 seen, [$1];
        setp.lt.s32 p, seen, $2; @p bra again; fence.proxy.async; mov.b32 $0, seen; }"""
    gl.inline_asm_elementwise(asm, "=r,l,r", [ptr, count], gl.int32, is_pure=False, pack=1)


@gluon.jit
def begin_kernel(independent):
    """Wait for the kernel before this one, which may still run (programmatic dependent launch), and let the next start.

    An independent kernel reads nothing that the one before it makes, and waits for it in `end_kernel`. So a kernel that
    waits at once has all that was launched before it; one that is independent, all but the kernels since the last that
    waited. Either way nothing before it runs any more when it has ended. The next kernel takes the multiprocessors that
    this one leaves.
    """
    wait_for_kernel_before_unless(independent)
    let_next_kernel_start()


@gluon.jit
def end_kernel(independent):
    """Wait, at the end of an independent kernel, for the one before it."""
    wait_for_kernel_before_unless(not independent)
