"""Let many processes test on one GPU, and other libraries' kernels compile in seconds."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch


@pytest.fixture(autouse=True)
def hand_back_memory() -> Iterator[None]:
    """Empty PyTorch's cache, which otherwise keeps the most that any test of this process has taken."""
    yield
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@pytest.fixture
def untuned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Triton's autotuners take their first configuration: to compile and time all of fla's takes minutes."""
    tuner: Any = pytest.importorskip("triton.runtime.autotuner").Autotuner
    tuned = tuner.run

    def run(self: Any, *args: Any, **named: Any) -> Any:
        self.configs = self.configs[:1]
        return tuned(self, *args, **named)

    monkeypatch.setattr(tuner, "run", run)
