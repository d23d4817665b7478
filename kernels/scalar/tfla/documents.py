"""Let the Triton kernels take documents that lie end to end along T, all in one launch of each kernel.

Rows of q, k, v and outputs stay where they are. Gates and row sums, and so chunks, are by places (`common.places`):
each document starts a new chunk. A kernel finds the document of a chunk in a `Table`. The walk over states takes each
document as a segment with states of its own.
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor

from tflabench.kernels.common import device
from tflabench.kernels.common.sizes import Sizes
from tflabench.kernels.scalar.plan import tfla as plans


def takes(bounds: list[int], q: Tensor, v: Tensor, *, states: bool, levels: int) -> bool:
    """Return whether one launch is the fastest way for documents of q, v (1, H, T, d) between bounds."""
    lengths = [end - begin for begin, end in pairwise(bounds)]
    return plans.takes_documents(Sizes.of(q, v), device.figures(q.device), lengths, states=states, levels=levels)
