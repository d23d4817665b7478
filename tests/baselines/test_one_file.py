"""A baseline is one file: a library that no other file knows goes through commands, figures and theory."""

from __future__ import annotations

import sys

import pytest
from figure_rows import lengths, lit, made

import tflabench.baselines
from tflabench.cli.main import app
from tflabench.figures import looks
from tflabench.implementations import registry
from tflabench.problem import Problem

TOY = '''
"""A library that does not exist: a cumulative sum."""

from tflabench.baselines.packages import refuse
from tflabench.implementations.adapter import Case, Implementation, Owner, draw
from tflabench.theory.cost import Cost

NEEDS = {"toy_kernels": "pip install toy_kernels"}


def build(problem, device):
    inputs = draw(problem, device, {"v": (problem.batch, problem.heads, problem.seq_len, problem.d_hv)})
    return Case(inputs, lambda: inputs["v"].cumsum(2), oracle=lambda inputs: inputs["v"].cumsum(2))


def refuses(problem, device):
    return refuse(problem, "cuda", NEEDS, "bfloat16 float32")


def cost(problem):
    elements = problem.tokens * problem.heads * problem.d_hv
    return Cost(flops=elements, bytes=2 * elements * problem.element_bytes)


IMPLEMENTATIONS = (
    Implementation(
        "toy_sum", "linear_attention", "Toy sum", build, refuses, cost=cost, owner=Owner("toy", "yellow"),
        package="toy_kernels", packages=("numpy",), operation="sum", bound="ungated", majors=(9, 9),
    ),
)
'''


@pytest.fixture
def _toy(tmp_path, monkeypatch):
    """Put the file into the folder of baselines, and its name into the list of the registry."""
    (tmp_path / "toy.py").write_text(TOY)
    monkeypatch.setattr(tflabench.baselines, "__path__", [*tflabench.baselines.__path__, str(tmp_path)])
    monkeypatch.setattr(registry, "ADAPTERS", (*registry.ADAPTERS, "toy"))
    forget()
    yield
    sys.modules.pop("tflabench.baselines.toy", None)
    monkeypatch.undo()
    forget()


def forget() -> None:
    """Have the registry look its modules up again."""
    registry._bundled.cache_clear()
    registry._named.cache_clear()


def printed(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as end:
        app(list(arguments))
    output = capsys.readouterr()
    assert not end.value.code, output.err
    return output.out


@pytest.mark.usefixtures("_toy")
def test_a_library_in_one_file_is_listed_selected_drawn_and_counted(capsys):
    assert "toy_sum" in printed(capsys, "list")
    refusal = "toy_kernels is not installed: pip install toy_kernels"
    plan = printed(capsys, "sweep", "--impl", "toy_sum", "-a", "seq_len=512", "--device", "cpu", "--dry-run")
    assert "toy_sum" in plan
    impl, problem = registry.get("toy_sum"), Problem(1, 2, 512, 64, 128)
    assert impl.refuses(problem, "cuda") == refusal
    assert impl.count(problem).flops == 2 * 512 * 128
    assert impl.bounded == "ungated"
    assert "numpy" in registry.package_versions()

    (panel,) = made(lengths(("toy_sum", "mamba2"), ("fw",)), ["runtime"])["runtime-seq_len"].panels
    assert lit(panel)["toy_sum"].ink.colour == looks.YELLOW
    assert lit(panel)["mamba2"].ink.colour == looks.PURPLE
