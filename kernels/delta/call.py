"""Name what all kernels of one call of the delta rule share."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from tflabench.kernels.common import device
from tflabench.kernels.common.contract import Arguments, KernelOptions
from tflabench.kernels.common.descriptors import made_like
from tflabench.kernels.common.places import Places
from tflabench.kernels.common.rows import Rows, rows
from tflabench.kernels.common.sizes import Sizes
from tflabench.kernels.common.tensors import sum_shared
from tflabench.kernels.scalar.gates import TileGates
from tflabench.kernels.scalar.tfla.call import Call
from tflabench.kernels.scalar.tfla.chunkwise import call_of, placed_gates
from tflabench.kernels.types import Gate

from .plan import WalkTiles

DECAYING, CONSTANT = Gate("log_decay", "step"), Gate("fixed", "step")


class DeltaSizes(NamedTuple):
    """Numbers of a launch: heads, heads that share one of q and k, steps, dimensions, tiles of a chunk, factor of q.

    Attributes:
        documents: how many there are, 1 for a sequence.
    """

    heads: Any
    sharing: Any
    T: Any
    d_qk: Any
    d_hv: Any
    chunk_tiles: Any
    scale: Any
    documents: Any


class DeltaCall(NamedTuple):
    """Tell launchers of kernels of a call, but for its tensors.

    Attributes:
        scalar: of the linear RNN whose values are the errors: beta is its input gate, a step size.
        tiles: of the walks.
        places: of documents, None for sequences.
    """

    scalar: Call
    tiles: WalkTiles
    places: Places | None

    @staticmethod
    def of(arguments: Arguments, options: KernelOptions) -> DeltaCall:
        """Return the call with these tensors and options."""
        q, v, f, beta = arguments.q, arguments.v, arguments.f, arguments.i
        assert beta is not None
        gate = CONSTANT if f is None and options.bounds is None else DECAYING
        if f is None:
            f = v.new_zeros(v.shape[1] if gate is CONSTANT else v.shape[:3], dtype=beta.dtype)
        arguments, scalar_options = arguments._replace(f=f), options._replace(gate=gate)
        placed = placed_gates(arguments, scalar_options)
        scalar = call_of(q, v, placed, scalar_options)
        figures, beta_max = device.figures_of(q, options), options.gate.beta_max
        tiles = WalkTiles.of(Sizes.of(q, v), scalar.plan.chunk_size, q.element_size(), beta_max, figures)
        return DeltaCall(scalar, tiles, placed.places)

    @property
    def gates(self) -> TileGates:
        """The log gates of a call, summed within the tiles of the walks."""
        return self.scalar.tile_gates(self.tiles.rows)

    @property
    def precision(self) -> str:
        """The input_precision of products: float32 has tensor cores too, where three products make one."""
        return "tf32x3" if self.scalar.precision == "ieee" else self.scalar.precision

    def sizes(self, k: Tensor, d_hv: int) -> DeltaSizes:
        """Return the numbers of a launch that reads k, or q, (B, H or fewer, T, d_qk)."""
        _, heads, T = self.scalar.gates.log_f.shape
        return DeltaSizes(
            heads, heads // k.shape[1], T, k.shape[-1], d_hv, self.scalar.plan.chunk_size // self.tiles.rows,
            self.scalar.scale, self.places.documents if self.places else 1,
        )  # fmt: skip

    def rows(self, x: Tensor) -> Rows:
        """Return what kernels take for x (B, H, T, d) (`common.rows`)."""
        return rows(x, None if self.places is None else self.places.steps)


def as_gradients(
    arguments: Arguments, options: KernelOptions, made: tuple[Tensor | None, ...], d_initial: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Return gradients as `backward` does of dq and dk of every head of v, dv, dg and dbeta, as kernels write them."""
    (dq, dk, dv), initial = made[:3], arguments.initial
    assert dq is not None
    assert dk is not None
    gates = zip(made[3:], arguments[3:5], strict=True)
    of_gates = (None if y is None or x is None or not options.gate_gradients else y.to(x.dtype) for y, x in gates)
    given = sum_shared(dq, arguments.q), sum_shared(dk, arguments.k), dv, *of_gates
    grads = (made_like(y, like) for y, like in zip(given, arguments[:5], strict=True))
    return (*grads, None if initial is None else made_like(d_initial, initial.C), None)
