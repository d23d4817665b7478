"""The examples of README.md are run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import torch

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_the_examples_of_the_kernels_run_one_after_the_other():
    section = README.read_text().split("## Use the kernels in your model")[1].split("\n## ")[0]
    blocks = BLOCK.findall(section)
    assert len(blocks) == 6
    names: dict = {}
    torch.manual_seed(0)
    for block in blocks:
        assert len(block.strip().splitlines()) <= 11, block
        exec(compile(block, str(README), "exec"), names)
    torch.testing.assert_close(names["same"], names["y"])
    assert names["q"].grad.isfinite().all()
    assert names["final_state"].shape == (2, 4, 64, 128)
