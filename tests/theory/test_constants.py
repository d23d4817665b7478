"""The list of the calibrated model's constants is what the model reads, and says where each is from."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import pytest

from tflabench.theory import calibrated, constants, fused, launches, tfla
from tflabench.theory.constants import CONSTANTS, RATES

MODEL = (launches, tfla, fused, calibrated)
# Numbers that formulas are made of: halves and doubles, powers, the two FLOPs of a multiply-add, counts of tensors.
# Pointwise operations (`vector_ops`) and tilings (`Tiles.of`) are counted where they stand and held to the kernels.
ORIGINS = ("datasheet", "calibrate: ", "fitted on ", "counted in ")


def test_every_constant_has_a_name_a_meaning_and_an_origin():
    names = [constant.name for constant in CONSTANTS]
    assert len(names) == len(set(names))
    for constant in (*RATES, *CONSTANTS):
        assert constant.meaning
        assert constant.origin.startswith(ORIGINS), constant
    for constant in CONSTANTS:
        assert getattr(constants, constant.name) == constant.value, constant.name


def test_one_constant_is_fitted():
    fitted = [constant for constant in CONSTANTS if constant.origin.startswith("fitted on ")]
    assert [constant.name for constant in fitted] == ["ROUND_TRIP_S"]
    assert fitted[0].origin == "fitted on rows of the H200 with heads of 128/256"


@pytest.mark.parametrize("module", MODEL)
def test_no_module_of_the_model_defines_a_number_of_its_own(module):
    """At module level; what a number inside a formula is, the formula says."""
    tree = ast.parse(Path(str(module.__file__)).read_text())
    for node in tree.body:
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
            continue
        numbers = [part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant)]
        assert not [n for n in numbers if isinstance(n, (int, float)) and not isinstance(n, bool)] or (
            ast.unparse(node).startswith("PUBLISHED_TERMS")  # how many of the terms the published model has
        ), ast.unparse(node)


def test_every_constant_is_read_by_the_model():
    read = set()
    for module in (*MODEL, constants):
        tree = ast.parse(Path(str(module.__file__)).read_text())
        read |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    assert {constant.name for constant in CONSTANTS} <= read


def test_the_model_reads_what_the_list_says():
    """A chip has the rates that are listed, and the one constant that is fitted."""
    listed = {rate.name.split(".")[0] for rate in RATES if rate.name != "vector_ops"}
    assert set(launches.Chip.__dataclass_fields__) == {*listed, "round_trip_s"}
    chip = launches.Chip.__dataclass_fields__["round_trip_s"]
    assert math.isclose(chip.default, constants.ROUND_TRIP_S)
