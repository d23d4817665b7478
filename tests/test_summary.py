"""What a sweep says at its end of rows that cannot be trusted as they are."""

from __future__ import annotations

import sys
from pathlib import Path

from tflabench.summary import failures

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
    (line,) = failures([row(percent_of_roofline=101.0), row(percent_of_roofline=138.2), row()])
    assert line.startswith("above the roofline (2x, up to 138%): the ceilings were measured while the machine was busy")
    assert "`tflabench calibrate` measures them again" in line
