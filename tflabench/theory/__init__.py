"""Theory: what a kernel computes and moves, what a chip can do, and what follows.

The paper's model: cost, hardware, roofline, chunk_size, problem_bound. A model of the kernels that run: a launch term
by term (launches), the paper's kernels (tfla) and the fused ones (fused) as launches, and both models against measured
times (calibrated).

Imports no torch; every count is a pure function of ints or numpy arrays.
"""
