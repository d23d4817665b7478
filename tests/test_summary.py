"""What a sweep says at its end of rows that cannot be trusted as they are."""

from __future__ import annotations

import sys
from pathlib import Path

from tflabench.conclusions.summary import failures, line

sys.path.insert(0, str(Path(__file__).parent))
from synthetic import row


def test_flags_and_failures_are_counted():
    rows = [row(noisy=True), row(noisy=True, throttled=True), row(ms=None)]
    assert failures(rows) == [
        "oom (1x)  tfla_sig_xl: no memory",
        "noisy (2x): spread over 5%",
        "throttled (1x): the GPU held its clock back",
    ]


def test_rows_above_the_roofline_are_named():
    assert failures([row(percent_of_roofline=99.9), row(percent_of_roofline=None)]) == []
    (found,) = failures([row(percent_of_roofline=101.0), row(percent_of_roofline=138.2), row()])
    assert found.startswith(
        "above the roofline (2x, up to 138%): the ceilings were measured while the machine was busy"
    )
    assert "`tflabench calibrate` measures them again" in found


def test_calls_that_wait_for_the_host_are_named():
    """What the host needs is no part of a time, and hides behind it only where it is shorter."""
    rows = [row(ms=1.0, host_ms=0.5), row(ms=0.2, host_ms=0.5), row(ms=0.4, host_ms=0.5), row(ms=None, host_ms=None)]
    assert [line(one).count("host 0.5 ms") for one in rows] == [0, 1, 1, 0]
    assert failures(rows)[1:] == [
        "enqueued slower than run (2x, up to 2.5 times): eager PyTorch waits for the host, a CUDA graph does not"
    ]
