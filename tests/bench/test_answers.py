"""Results of two calls: rounding in another order passes, anything else is told."""

from __future__ import annotations

import pytest
import torch

from tflabench.bench.answers import GROUPS, changed, digest

ALLOWED = {"forward": 0.005}


def results(seed: int = 0) -> torch.Tensor:
    return torch.randn(2, 3, 256, 64, generator=torch.Generator().manual_seed(seed))


def told(before: torch.Tensor, after: torch.Tensor) -> str | None:
    return changed(digest({"forward": before}), digest({"forward": after}), ALLOWED)


def test_the_same_bits_are_the_same():
    assert told(results(), results()) is None


def test_rounding_passes():
    x = results()
    assert told(x, x.bfloat16().float()) is None
    assert told(x, x * (1 + 0.005 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1)))) is None


@pytest.mark.parametrize("place", [(0, 0, 0), (1, 2, 192)])
def test_a_tile_that_is_wrong_once_is_told(place):
    x, y = results(), results()
    b, h, t = place
    y[b, h, t : t + 64] = torch.roll(y[b, h, t : t + 64], 1) * 1.5 + 0.1
    assert told(x, y) == "not repeatable: forward changes from one call to the next"


def test_other_results_nan_and_infinity_are_told():
    x = results()
    assert told(x, results(1))
    for value in (float("nan"), float("inf")):
        y = x.clone()
        y[0, 0, 0, 0] = value
        assert told(x, y)
        assert told(y, y.clone()) is None  # wrong, but the same every time: the correctness gate tells


def test_a_result_that_is_missing_or_of_another_shape_is_told():
    before = digest({"forward": results(), "dq": results(1)})
    assert changed(before, digest({"forward": results()}), ALLOWED)
    small = digest({"forward": results().flatten()[:10], "dq": results(1)})
    assert len(small["forward"]) == 10 < GROUPS
    assert changed(before, small, ALLOWED)


def test_zero_everywhere_is_a_result():
    assert told(torch.zeros(4, 4), torch.zeros(4, 4)) is None
    assert told(torch.zeros(4, 4), torch.ones(4, 4))
