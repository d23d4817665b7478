"""Small xLSTM models of transformers, with random weights."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor


@contextmanager
def hugging_face(external: bool) -> Iterator[Any]:
    """Import transformers' xLSTM anew, made of blocks of the package xlstm or, without it, of its own."""
    utils = importlib.import_module("transformers.utils")  # pyright takes 23 s to bind the package itself

    def ours() -> list[str]:
        return [name for name in sys.modules if name.startswith("transformers.models.xlstm")]

    before = {name: sys.modules.pop(name) for name in ours()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "is_xlstm_available", lambda: external)
        modeling = importlib.import_module("transformers.models.xlstm.modeling_xlstm")
        assert modeling.external_xlstm == external
        yield modeling
    for name in ours():
        del sys.modules[name]
    sys.modules.update(before)


def build(modeling: Any, blocks: int = 2, **options: Any) -> Any:
    """Return a causal language model with the same random weights each time."""
    shape = {"vocab_size": 97, "hidden_size": 128, "num_hidden_layers": blocks, "num_blocks": blocks, "num_heads": 2}
    config = modeling.xLSTMConfig(**(shape | {"chunk_size": 16} | options))
    torch.manual_seed(0)
    return with_gates(modeling.xLSTMForCausalLM(config))


@torch.no_grad()
def with_gates(model: Any) -> Any:
    """Return the model with gates that open and close."""
    for name, x in model.named_parameters():
        if name.endswith("gate_preact.bias"):
            x.copy_(torch.randn(x.shape) + (3 if "fgate" in name else -1))
        elif "gate_preact" in name and "ogate" not in name:
            x.normal_(std=0.1)
    return model


def tokens(T: int, batch: int = 2) -> Tensor:
    return torch.randint(3, 97, (batch, T), generator=torch.Generator().manual_seed(T))


def off(found: Tensor, wanted: Tensor) -> float:
    return ((found - wanted).norm() / wanted.norm().clamp(min=1e-12)).item()


# --- Hugging Face
