# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""The walks for o and for dv of the delta rule (`delta.hopper.walk`) with a decay a channel, after operands.py."""

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tflabench.kernels.common.launching import enqueue
from tflabench.kernels.delta.hopper.config import DeltaWalkConfig
from tflabench.kernels.delta.hopper.schedule import DeltaCounts, get_schedule
from tflabench.kernels.delta.hopper.walk import DeltaWalkStates, allocate_program, load_partition
from tflabench.kernels.delta.hopper.walks import state_partition
from tflabench.kernels.delta.hopper_plan import DeltaWalk, DeltaWalkShape
from tflabench.kernels.scalar.hopper.launch import descriptor, exponents_descriptor, pointers
from tflabench.kernels.scalar.hopper.workarounds import ASSEMBLY

from .operands import WalkOperands

STATE_REGISTERS = 232  # without a score partition


@gluon.jit
def allocate_outputs(desc, COUNT: gl.constexpr):
    """Return COUNT blocks in shared memory, for either state partition."""
    left = gl.allocate_shared_memory(desc.dtype, [COUNT, 1, 1, 64, 64], desc.layout)
    return left, gl.allocate_shared_memory(desc.dtype, [COUNT, 1, 1, 64, 64], desc.layout)


@gluon.jit
def walk_outputs_of_channels(  # noqa: PLR0913  descriptors, which Triton does not take in a tuple
    query_desc, key_desc, written_desc, p_desc, x_desc, decays_desc, v_desc, o_desc, z_desc, state_desc, states, counts,
    config: gl.constexpr,
):  # fmt: skip
    """Compute o of all work items, with Z and states before tiles if they are kept; 4 warps and maxnreg=168."""
    REGISTERS: gl.constexpr = config.state_registers
    program = allocate_program(get_schedule(counts), states, states, config, query_desc)
    out_smem = allocate_outputs(query_desc, config.num_outputs)
    state_smem = out_smem
    if config.keeps_states:
        state_smem = allocate_outputs(query_desc, 2)
    descs = o_desc, z_desc, state_desc
    inputs = query_desc, key_desc, v_desc, x_desc, written_desc, p_desc, decays_desc
    gl.warp_specialize(
        [
            (state_partition, (program, descs, (out_smem[0], state_smem[0]), 0)),
            (state_partition, (program, descs, (out_smem[1], state_smem[1]), 1)),
            (load_partition, (program, inputs)),
        ],
        [4, 1],
        [REGISTERS, 504 - 2 * REGISTERS],
    )


@gluon.jit
def walk_values_of_channels(
    query_desc, key_desc, written_desc, p_desc, x_desc, decays_desc, do_desc, dv_desc, state_desc, states, counts,
    config: gl.constexpr,
):  # fmt: skip
    """Compute dv of all work items, and D after every tile and before the first; 4 warps and maxnreg=168."""
    REGISTERS: gl.constexpr = config.state_registers
    program = allocate_program(get_schedule(counts), states, states, config, query_desc)
    dv_smem, state_smem = allocate_outputs(query_desc, 1), allocate_outputs(query_desc, 2)
    descs = dv_desc, state_desc
    inputs = query_desc, key_desc, do_desc, x_desc, written_desc, p_desc, decays_desc
    gl.warp_specialize(
        [
            (state_partition, (program, descs, (dv_smem[0], state_smem[0]), 0)),
            (state_partition, (program, descs, (dv_smem[1], state_smem[1]), 1)),
            (load_partition, (program, inputs)),
        ],
        [4, 1],
        [REGISTERS, 504 - 2 * REGISTERS],
    )


def launch_walk(
    walk: DeltaWalk, outputs: tuple[Tensor | None, Tensor | None], operands: WalkOperands, v: Tensor, *, reverse: bool,
    states: DeltaWalkStates, parts: int, kept: Tensor | None = None,
) -> None:  # fmt: skip
    """Write o and Z, or reversed dv and D, and the state after the walk if there is room for it.

    Args:
        outputs: as of `delta.hopper.walks.launch_walk`.
        v: reversed the gradient of o.
        kept: states before tiles, (1, B * H * tiles, d_hv, d_qk), in the dtype of v, where Z is kept too.
    """
    keeps = not reverse and outputs[1] is not None
    stages = 2 if reverse or keeps or parts > 1 else 3
    config = DeltaWalkConfig.of(
        DeltaWalkShape(parts, num_value_stages=stages, state_registers=STATE_REGISTERS),
        d_qk=walk.sizes.d_qk, d_hv=walk.sizes.d_hv, gated=True, channels=True, reverse=reverse,
        states_only=outputs[0] is None, keeps_errors=keeps, keeps_states=keeps, loads=states.initial is not None,
        stores=states.final is not None, num_outputs=1 if keeps and parts > 1 else 2,
    )  # fmt: skip
    written = outputs if reverse else (*outputs, kept if keeps else None)
    descs = map(descriptor, (v, *(v if x is None else x for x in written)))
    enqueue(
        walk_values_of_channels if reverse else walk_outputs_of_channels, walk.programs,
        *map(descriptor, operands[:5]), exponents_descriptor(operands.decays), *descs,
        pointers(states, operands.decays), DeltaCounts.of(walk), config=config, num_warps=4, maxnreg=168, **ASSEMBLY,
    )  # fmt: skip
