"""Theory: what a kernel computes and moves (cost), what a chip can do (hardware), what follows (roofline, chunk_size).

Imports no torch; every count is a pure function of ints or numpy arrays.
"""
