"""Every number that the calibrated model reads and no problem brings, with where it is from.

A constant is defined here and imported where it is used, so `CONSTANTS` is what the model reads and not a copy of it
(test_constants.py holds the modules of the model to that). Rates of a GPU are not constants: they are those that
`tflabench calibrate` stored with the rows, else those of the datasheet (`hardware`); `RATES` lists them.

One constant is fitted: `ROUND_TRIP_S`, on the rows that `FITTED` names. Rows of another GPU or another head size have
had no say in it. docs/decisions/2026-11-24-model-held-out.md has what was tried, and what went.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Constant:
    """A number of the model.

    Attributes:
        name: of this module, or of the attribute of `launches.Chip`.
        value: in `unit`; None where every GPU has its own.
        meaning: what it stands for.
        origin: "datasheet", "calibrate: " + micro-benchmark, "fitted on " + rows, or "counted in " + source.
    """

    name: str
    value: float | None
    unit: str
    meaning: str
    origin: str


@dataclass(frozen=True)
class Rows:
    """Rows by what was measured: a GPU's name (see `hardware`) and a head size; of every implementation and pass."""

    gpu: str
    d_qk: int
    d_hv: int

    def __str__(self) -> str:
        return f"rows of the {self.gpu.split()[0]} with heads of {self.d_qk}/{self.d_hv}"


FITTED = Rows("H200 SXM", 128, 256)
RATES = (
    Constant("ceilings.flops_per_s", None, "FLOP/s", "matrix rate", "calibrate: square products; else datasheet"),
    Constant("ceilings.bytes_per_s", None, "byte/s", "memory bandwidth", "calibrate: copy of 1 GiB; else datasheet"),
    Constant("vector_ops_per_s", None, "1/s", "pointwise operations, half the float32 rate", "datasheet"),
    Constant(
        "capability", None, "", "by which kernels choose tiles; shared memory", "datasheet: CUDA programming guide"
    ),
    Constant("multiprocessors", None, "", "on which programs run", "datasheet"),
    Constant("vector_ops", None, "", "pointwise operations, as the comments beside them count", "counted in kernels/"),
)
_found: list[Constant] = []


def _constant(name: str, value: Number, unit: str, meaning: str, origin: str) -> Number:
    _found.append(Constant(name, value, unit, meaning, origin))
    return value


_GUIDE = "datasheet: CUDA programming guide"
_TFLA = "counted in kernels/scalar/tfla"
_HOPPER = "counted in kernels/scalar/hopper"
_NXAI = "counted in mlstm_kernels 2.0.6, xl_chunk"

# --- Of every kernel
ROUND_TRIP_S = _constant(
    "ROUND_TRIP_S", 0.68e-6, "s", "a dependent access to memory under load, launches and gaps included",
    f"fitted on {FITTED}",
)  # fmt: skip
EXP_LANES = _constant("EXP_LANES", 8, "", "pointwise operations in the time of an exponential: 128 to 16", _GUIDE)
ENDS = _constant("ENDS", 2, "", "round trips of a program before and after its loop: first fetch, last store", _TFLA)

# --- Of the bundled Triton kernels
TFLA_STATE_BYTES = _constant("TFLA_STATE_BYTES", 2, "byte", "an element of chunk states: as the inputs", _TFLA)
TILE_GATES = _constant("TILE_GATES", 24, "byte", "a step of the gates' sums within tiles", _TFLA)

# --- Of mlstm_kernels
NXAI_STATE_BYTES = _constant("NXAI_STATE_BYTES", 4, "byte", "an element of chunk states: float32", _NXAI)
NXAI_STEPS = _constant("NXAI_STEPS", 64, "", "steps of a program and of its loop (siz_b_L_*)", _NXAI)
NXAI_INNER = _constant("NXAI_INNER", 64, "", "block of the dimension summed over", _NXAI)
NXAI_OUTER = _constant("NXAI_OUTER", 128, "", "columns of the output in a program", _NXAI)
NXAI_RESIDENT = _constant(
    "NXAI_RESIDENT", 2, "", "programs on a multiprocessor: 4 warps, sums of 160 registers a thread", _NXAI
)
NXAI_WALK_STEPS = _constant("NXAI_WALK_STEPS", 128, "", "steps that the state walk waits for at once, at most", _NXAI)
NXAI_WALK_STATE = _constant("NXAI_WALK_STATE", 64, "", "rows and columns of the state in one of its programs", _NXAI)

# --- Of the fused kernels
STABILISED_BYTES = _constant("STABILISED_BYTES", 8, "byte", "log f and m of a step, which exp has besides", _HOPPER)
CARRYING = _constant("CARRYING", 10, "", "programs on a multiprocessor that join segments, which fetch ahead", _HOPPER)
ROLES = _constant("ROLES", 4, "", "groups of warps in a program: fetch, scores, and two that multiply", _HOPPER)

CONSTANTS = tuple(_found)
