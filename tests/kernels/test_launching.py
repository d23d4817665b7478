"""What `enqueue` launches is what Triton would launch, on the oldest Triton and the one installed."""

from __future__ import annotations

import pytest
from compiled import compiled_under


@pytest.mark.parametrize("triton", ["installed", "oldest"])
def test_a_launch_like_an_earlier_one_is_the_same(triton):
    """Arguments that differ in one thing each, on two devices; in a process of its own: here Triton may interpret."""
    report = compiled_under(triton, "launches.py")
    assert report["kernels"] > 30
    assert report["launches"] > 5 * report["kernels"]
