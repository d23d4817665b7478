"""Theory: what a kernel computes and moves (cost), what a chip can do (hardware), what follows (roofline, chunk_size,
problem_bound).

Beside the paper's model, one of the kernels that run: a launch term by term (launches), the paper's kernels (tfla) and
the fused ones (fused) as launches, and both models against measured times (calibrated).

Imports no torch; every count is a pure function of ints or numpy arrays.
"""
