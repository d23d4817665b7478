"""Every number that the calibrated model reads and no problem brings, each with its origin.

Rates of a GPU are no constants: `launches.Chip` has them, from `tflabench calibrate` or the datasheet. One constant is
fitted, ROUND_TRIP_S, on the rows that FITTED_GPU and FITTED_HEADS name: no others have had a say in it
(docs/decisions/2026-11-24-model-held-out.md).
"""

from __future__ import annotations

FITTED_GPU = "H200 SXM"
FITTED_HEADS = (128, 256)  # d_qk, d_hv

# --- Of every kernel
ROUND_TRIP_S = 0.68e-6  # a dependent access to memory under load, launches and gaps included; fitted
EXP_LANES = 8  # pointwise operations in the time of an exponential, 128 to 16: CUDA programming guide
ENDS = 2  # round trips of a program before and after its loop, first fetch and last store: counted in the kernels

# --- Of the bundled Triton kernels, counted in kernels/scalar/tfla
TFLA_STATE_BYTES = 2  # of an element of chunk states: as the inputs
TILE_GATES = 24  # bytes a step of the gates' sums within tiles

# --- Of mlstm_kernels, counted in its version 2.0.6, xl_chunk
NXAI_STATE_BYTES = 4  # of an element of chunk states: float32
NXAI_STEPS = 64  # of a program and of its loop (siz_b_L_*)
NXAI_INNER = 64  # block of the dimension summed over
NXAI_OUTER = 128  # columns of the output in a program
NXAI_RESIDENT = 2  # programs on a multiprocessor: 4 warps, sums of 160 registers a thread
NXAI_WALK_STEPS = 128  # steps that the state walk waits for at once, at most
NXAI_WALK_STATE = 64  # rows and columns of the state in one of its programs

# --- Of the fused kernels, counted in kernels/scalar/hopper
STABILISED_BYTES = 8  # log f and m of a step, which exp has besides
CARRYING = 10  # programs on a multiprocessor that join segments, which fetch ahead
ROLES = 4  # groups of warps in a program: fetch, scores, and two that multiply
