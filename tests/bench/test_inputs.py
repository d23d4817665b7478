"""Values of inputs while a case is timed."""

from __future__ import annotations

import torch

from tflabench.bench.inputs import InputSlots
from tflabench.implementations.adapter import Case


def test_no_call_of_a_point_has_values_that_another_had():
    """Of few steps too, of which there are few orders; behind each the values are those of before."""
    v = torch.arange(4 * 2 * 40 * 3.0).reshape(4, 2, 40, 3)
    case = Case({"v": v, "f": v[..., 0].clone()}, lambda: v, oracle=lambda inputs: inputs["v"])
    slots = InputSlots(case)
    before = v.clone()
    seen = {tuple(v.flatten().tolist())}
    for _ in range(15):
        with slots.unseen():
            values = tuple(v.flatten().tolist())
            assert values not in seen
            seen.add(values)
        assert torch.equal(v, before)
