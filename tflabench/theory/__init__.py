"""Theory: what a kernel computes and moves, what a chip can do, and what follows.

The paper's model: cost, hardware, roofline, chunk_size, transfer. A model of the kernels that run (calibrated): a
launch term by term (launches), and the paper's kernels (tfla) and the fused ones (fused) as launches.

Imports no torch; every count is a pure function of ints or numpy arrays.
"""
