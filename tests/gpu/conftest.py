"""Let many processes test on one GPU: each hands back the memory of a test that has ended."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def hand_back_memory() -> Iterator[None]:
    """Empty PyTorch's cache, which otherwise keeps the most that any test of this process has taken."""
    yield
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
