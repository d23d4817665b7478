"""The numbers that the calibrated model reads stand in one file, each with its origin."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tflabench.theory import calibrated, constants, fused, launches, tfla


@pytest.mark.parametrize("module", [launches, tfla, fused, calibrated])
def test_no_module_of_the_model_defines_a_number_of_its_own(module):
    """At module level; what a number inside a formula is, the formula says."""
    tree = ast.parse(Path(str(module.__file__)).read_text())
    for node in tree.body:
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
            continue
        numbers = [part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant)]
        assert not [n for n in numbers if isinstance(n, (int, float)) and not isinstance(n, bool)] or (
            ast.unparse(node).startswith("PUBLISHED_TERMS")  # how many of the terms the paper's model has
        ), ast.unparse(node)


def test_the_fitted_constant_is_the_default_of_every_chip():
    assert launches.Chip.__dataclass_fields__["round_trip_s"].default == constants.ROUND_TRIP_S
