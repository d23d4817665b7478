"""Let the Triton kernels take documents that lie end to end along T, all in one launch of each kernel.

Rows of q, k, v and outputs stay where they are. Gates and row sums, and so chunks, are by places (`kernels.places`):
each document starts a new chunk. A kernel finds the document of a chunk in a `Table`. The walk over states takes each
document as a segment with states of its own.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from tflabench.kernels.backends import KernelOptions
from tflabench.kernels.places import Places, capturing, stream
from tflabench.kernels.plan import tfla as plans
from tflabench.kernels.plan.sizes import Sizes

from . import device
from .call import Table


def chunk_size(bounds: tuple[int, ...], given: int) -> int:
    """Return the steps of a chunk of documents between bounds: of a longer one, what takes the longest document."""
    longest = max(end - begin for begin, end in pairwise(bounds))
    return plans.fitting(given, longest)


def places_of(options: KernelOptions, of: torch.device) -> Places:
    """Return the places of the documents of a call, in tiles of a chunk."""
    assert options.bounds
    return _places(options.bounds, chunk_size(options.bounds, options.chunk_size), of, stream())


@lru_cache(16)  # layers of a model have the same documents
def _places(bounds: tuple[int, ...], chunk: int, of: torch.device, stream: int) -> Places:
    del stream
    return Places.of(bounds, chunk, of)


def table_of(places: Places) -> Table:
    """Return where documents lie, for kernels."""
    return _table(places.bounds, places.tile, places.gaps.device, stream())


@lru_cache(16)
def _table(bounds: tuple[int, ...], chunk: int, of: torch.device, stream: int) -> Table:
    del stream
    edges = torch.tensor(bounds)
    lengths = edges.diff()
    behind = ((lengths + chunk - 1) // chunk + 1).cumsum(0)
    gaps = torch.cat([behind.new_zeros(1), behind])
    of_chunk = torch.arange(len(lengths)).repeat_interleave(gaps.diff())
    of_chunk = torch.cat([of_chunk, of_chunk.new_zeros(1)]).index_fill(0, gaps, -1)
    order = lengths.argsort(descending=True, stable=True)
    return Table(*(x.to(of, torch.int32) for x in (of_chunk, order, gaps, edges)))


def takes(bounds: list[int], q: Tensor, v: Tensor, *, states: bool, levels: int) -> bool:
    """Return whether one launch is the fastest way for documents of q, v (1, H, T, d) between bounds."""
    if capturing(v):
        return False
    lengths = [end - begin for begin, end in pairwise(bounds)]
    return plans.takes_documents(Sizes.of(q, v), device.figures(q.device), lengths, states=states, levels=levels)
