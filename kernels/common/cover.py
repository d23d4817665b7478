"""Count the blocks that cover a length, on the host.

Triton's functions of these names are made for code inside kernels: called from Python they take microseconds, and a
launch needs dozens of such numbers.
"""


def cdiv(length: int, block: int) -> int:
    """Return how many blocks cover a length."""
    return -(-length // block)


def next_power_of_2(n: int) -> int:
    """Return the smallest power of two that is not less than n >= 1."""
    return 1 << (n - 1).bit_length()
