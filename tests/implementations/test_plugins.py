"""Plugins: every mistake in one is a line or a row, and its kernels stand beside those of the project."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from repository import ROOT

from tflabench.bench.worker import Worker
from tflabench.implementations import plugins, registry
from tflabench.implementations.adapter import Implementation
from tflabench.plugin import Case, draw, mlstm_kernel
from tflabench.problem import InputError, Problem
from tflabench.selection.points import select_points
from tflabench.selection.presets import load_preset
from tflabench.theory.cost import Cost
from tflabench.theory.hardware import find

EXAMPLE = str(ROOT / "examples" / "add_a_kernel.py")
MAKES = "from tflabench.plugin import Implementation, mlstm_kernel\n"
ENTRY = (
    "Implementation({name!r}, {family!r}, 'title', {build}, print, gate={gate!r}, formulation={formulation!r}, {more})"
)
SMALL = Problem(2, 2, 16, 8, 16, dtype="float32")


@pytest.fixture(autouse=True)
def _nothing_plugged_in(monkeypatch):
    monkeypatch.setattr(registry, "_plugged", [])
    monkeypatch.setattr(registry, "_by_plugin", {})


def entry(**changes: Any) -> str:
    """The source of a plugin with one implementation, all right but for `changes`."""
    right = {"name": "mine", "family": "mlstm", "build": "print", "gate": "sig", "formulation": "chunkwise", "more": ""}
    return f"{MAKES}IMPLEMENTATIONS = ({ENTRY.format(**right | changes)},)"


MISTAKES = {
    "a syntax error": ("x = 1\ndef f(:\n", "line 2: SyntaxError: invalid syntax; expected a file that can be imported"),
    "raises at import": ("\n1 / 0", "line 2: ZeroDivisionError: division by zero; expected a file"),
    "defines nothing": ("x = 1", "it defines no IMPLEMENTATIONS; expected IMPLEMENTATIONS, a tuple of"),
    "a tuple of something": ("IMPLEMENTATIONS = (1,)", "IMPLEMENTATIONS[0] is an int; expected an Implementation"),
    "a name with a space": (entry(name="my kernel"), "name is 'my kernel'; expected letters, digits, '_', '-' and '.'"),
    "an unknown family": (entry(family="rnn"), "family is 'rnn'; expected one of mlstm, attention, linear_attention, "),
    "an unknown gate of a function": (
        f"{MAKES}IMPLEMENTATIONS = (mlstm_kernel('mine', print, gate='tanh'),)",
        "line 2: InputError: gate of mine is 'tanh': it must be one of exp, sig",
    ),
    "no function": (entry(build="3"), "build is an int; expected a function (problem, device)"),
    "no package": (entry(more="package=None"), "package is None; expected the name of a distribution"),
    "packages as one text": (entry(more="packages='numpy'"), "packages is 'numpy'; expected a tuple of distributions"),
    "a version in words": (entry(more="version='two'"), "version is 'two'; expected a whole number, or None"),
    "one major": (entry(more="majors=9"), "majors is 9; expected the lowest and the highest major compute capability"),
    "bytes that are no function": (entry(more="workspace_bytes=7"), "workspace_bytes is an int; expected a function"),
    "a name twice": (
        f"{MAKES}IMPLEMENTATIONS = 2 * (mlstm_kernel('mine', print, gate='sig'),)",
        "defines 'mine', which exists already",
    ),
}


@pytest.mark.parametrize(("source", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_a_line_that_names_the_file_and_what_was_expected(tmp_path, capsys, source, message):
    from tflabench.cli.main import app

    path = tmp_path / "mine.py"
    path.write_text(source)
    with pytest.raises(SystemExit) as end:
        app(["sweep", "--device", "cpu", "--dry-run", "--plugin", str(path)])
    out, err = capsys.readouterr()
    assert (end.value.code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"tflabench: plugin '{path}' ")
    assert message in err
    assert registry.plugged() == ()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.py", "there is no such file; expected the path of a .py file, or the name of a module"),
        ("no.such.module", "there is no module of this name; expected the name of a module that can be imported, or"),
        ("./", "it is a folder; expected the path of a .py file"),
    ],
)
def test_what_is_no_plugin_at_all(tmp_path, monkeypatch, name, message):
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("hello")
    with pytest.raises(InputError) as error:
        registry.plug_in(name)
    assert str(error.value).startswith(f"plugin '{name}' cannot be used: {message}")


def test_a_plugin_may_be_plugged_in_again(tmp_path):
    path = tmp_path / "mine.py"
    for names in ("one", "two"), ("two", "three"):
        made = ", ".join(f"mlstm_kernel({name!r}, print, gate='sig')" for name in names)
        path.write_text(f"{MAKES}IMPLEMENTATIONS = ({made})")
        registry.plug_in(str(path))
        assert tuple(impl.name for impl in registry.plugged()) == names


HELPERS = {
    "mine.py": f"{MAKES}import beside\nfrom below import deep\n"
    "def mine(*x):\n    from late import late\n    return late(*x)\n"
    "IMPLEMENTATIONS = (mlstm_kernel('mine', mine, gate='sig'),)\n",
    "beside.py": "x = 1\n",
    "late.py": "def late(*x): return x\n",
    "below/__init__.py": "",
    "below/deep.py": "from . import deeper\n",
    "below/deeper.py": "x = 1\n",
    "other.py": "x = 1\n",
}


def test_a_plugin_imports_what_lies_beside_it_and_is_known_by_all_of_that(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, text in HELPERS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        monkeypatch.delitem(sys.modules, name.removesuffix(".py").replace("/", "."), raising=False)

    def hash_of_it() -> str:
        registry.plug_in(str(tmp_path / "mine.py"))
        (impl,) = registry.plugged()
        assert impl.plugin
        assert impl.plugin.name == "mine.py"
        return impl.plugin.hash or ""

    hashes = [hash_of_it()]
    for name in ("mine.py", "beside.py", "late.py", "below/__init__.py", "below/deeper.py"):
        (tmp_path / name).write_text(HELPERS[name] + "# changed\n")
        hashes.append(hash_of_it())
    assert len(set(hashes)) == len(hashes)
    (tmp_path / "other.py").write_text("x = 2\n")
    assert hash_of_it() == hashes[-1]
    assert not list(tmp_path.glob("__pycache__/mine*")), "what Python compiled of it may be of before"


# --- What goes wrong when it runs is a row


def answer(impl: Implementation, monkeypatch, pass_: str = "fw") -> dict[str, Any]:
    """What the worker says when it is to prepare a point of an implementation."""
    monkeypatch.setattr(registry, "_plugged", [impl])
    answers: list[dict[str, Any]] = []
    worker = Worker("cpu", answers.append)
    worker.start([], None)
    worker.do(
        {"kind": "prepare", "implementation": impl.name, "problem": asdict(SMALL.with_(pass_=pass_)), "verify_s": 1}
    )
    return answers[-1]["result"]


def kernel(compute: Any, **options: Any) -> Implementation:
    return mlstm_kernel("mine", compute, gate="sig", **options)


def exact(q, k, v, i, f):
    from tflabench import ops

    return ops.mlstm_sig(q, k, v, i, f)


def fails(*_: Any) -> None:
    raise ValueError("not\ntoday")


@pytest.mark.parametrize("pass_", ["fw", "fwbw"])
@pytest.mark.parametrize(
    ("compute", "status", "reason"),
    [
        (exact, "ok", None),
        (lambda *x: 0.9 * exact(*x), "wrong", "forward is off by 0.1, "),
        (fails, "error", "ValueError: not today"),
        (
            lambda *x: exact(*x)[:, :, :, :1],
            "error",
            "shape (2, 2, 16, 1): it must be (B, H, T, d_hv) = (2, 2, 16, 16)",
        ),
        (lambda *x: exact(*x).sum(), "error", "shape (): it must be (B, H, T, d_hv) = (2, 2, 16, 16)"),
        (lambda *x: (exact(*x), 1), "error", "TypeError: the output is a tuple: it must be one tensor"),
    ],
)
def test_what_a_kernel_gets_wrong_is_a_row(monkeypatch, compute, status, reason, pass_):
    result = answer(kernel(compute), monkeypatch, pass_)
    assert result["status"] == status
    assert (reason or "") in (result["reason"] or "")


@pytest.mark.parametrize(
    ("build", "reason"),
    [(fails, "ValueError: not today"), (lambda *_: 3, "build returned int: it must return a Case")],
)
def test_a_build_that_raises_or_returns_no_case_is_a_row(monkeypatch, build, reason):
    result = answer(Implementation("mine", "mlstm", "mine", build, lambda *_: None), monkeypatch)
    assert result["status"] == "error"
    assert reason in result["reason"]


@pytest.mark.parametrize("details", [None, ["chunk_size"], {(1, 2): 3}])
def test_details_that_no_row_can_hold_are_a_row(monkeypatch, details):
    def build(problem, device):
        inputs = draw(problem, device, {"v": (problem.batch, problem.heads, problem.seq_len, problem.d_hv)})
        return Case(inputs, lambda: inputs["v"] + 1, oracle=lambda x: x["v"] + 1, details=details)

    result = answer(Implementation("mine", "mlstm", "mine", build, lambda *_: None), monkeypatch)
    assert result["status"] == "error"
    assert "they must be a dict with strings as keys" in result["reason"]


@pytest.mark.parametrize("size", ["x", 0, -16, 1.5, True])
def test_a_chunk_size_that_is_none_is_a_row(monkeypatch, size):
    def build(problem, device):
        inputs = draw(problem, device, {"v": (problem.batch, problem.heads, problem.seq_len, problem.d_hv)})
        return Case(inputs, lambda: inputs["v"] + 1, oracle=lambda x: x["v"] + 1, details={"chunk_size": size})

    result = answer(Implementation("mine", "mlstm", "mine", build, lambda *_: None), monkeypatch)
    assert result["status"] == "error"
    assert f"details have the chunk_size {size!r}: it must be an integer, 1 or more" in result["reason"]


@pytest.mark.parametrize(
    ("field", "returned", "message"),
    [
        ("cost", 5, "the cost of mine is 5; expected a Cost of FLOPs and bytes, both finite"),
        ("cost", Cost(float("nan"), 1), "the cost of mine is Cost.flops=nan, bytes=1.; expected a Cost"),
        ("cost", Cost(-1, 1), "the cost of mine is Cost.flops=-1, bytes=1.; expected a Cost"),
        ("usual_chunk_size", 0, "the usual_chunk_size of mine is 0; expected an integer, 1 or more"),
        ("usual_chunk_size", "x", "the usual_chunk_size of mine is 'x'; expected an integer"),
        ("workspace_bytes", None, "the workspace_bytes of mine is None; expected a number of bytes"),
        ("shared_bytes", float("inf"), "the shared_bytes of mine is inf; expected a number of bytes"),
    ],
)
def test_what_a_function_returns_is_named_where_the_bench_cannot_count_with_it(field, returned, message):
    makes = {field: lambda *_: returned}
    (guarded,) = plugins._checked((Implementation("mine", "mlstm", "mine", print, print, **makes),))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=message):
        getattr(guarded, field)(SMALL)


def test_lists_do_for_tuples_and_no_usual_chunk_size_is_none():
    fields = {"packages": ["numpy"], "majors": [8, 9], "usual_chunk_size": lambda _: None}
    (guarded,) = plugins._checked((Implementation("mine", "mlstm", "mine", print, print, **fields),))  # type: ignore[arg-type]
    assert guarded.usual_chunk_size
    assert guarded.usual_chunk_size(SMALL) is None


def test_a_reason_of_two_lines_is_one():
    (guarded,) = plugins._checked((Implementation("mine", "mlstm", "mine", print, lambda *_: "two\nlines"),))  # type: ignore[arg-type]
    assert guarded.refuses(SMALL, "cpu") == "two lines"


def test_refuses_and_cost_that_fail_end_no_sweep(tmp_path):
    path = tmp_path / "mine.py"
    fault = "def fault(*_): raise ValueError('no idea')\n"
    path.write_text(
        f"{MAKES}{fault}IMPLEMENTATIONS = (Implementation('mine', 'mlstm', 't', print, fault, cost=fault),)"
    )
    registry.plug_in(str(path))
    (impl,) = registry.plugged()
    assert impl.refuses(SMALL, "cpu") == "its refuses raised ValueError: no idea"
    with pytest.raises(InputError, match="the cost of mine raised ValueError: no idea; expected a Cost"):
        impl.count(SMALL)
    path.write_text(path.read_text().replace("raise ValueError('no idea')", "return 3"))
    registry.plug_in(str(path))
    assert (
        registry.plugged()[0].refuses(SMALL, "cpu") == "its refuses returned 3; expected None or a reason in one line"
    )


def test_a_kernel_from_a_function_says_what_it_does_not_do():
    forward_only = kernel(exact, backward=False, device="cuda")
    assert forward_only.refuses(SMALL, "cuda") is None
    assert forward_only.refuses(SMALL, "cpu") == "runs on cuda, not on cpu"
    assert forward_only.refuses(SMALL.with_(pass_="fwbw"), "cuda") == "has no backward: the pass must be fw"
    assert "computes sequences" in (kernel(exact).refuses(SMALL.with_(pass_="decode", seq_len=1), "cpu") or "")


def test_a_kernel_that_takes_chunk_sizes_gets_them():
    import torch

    seen = []
    impl = kernel(lambda *x, chunk_size: seen.append(chunk_size), chunked=True)
    for size in (64, None):
        impl.build(SMALL.with_(chunk_size=size), torch.device("cpu")).forward()
    assert seen == [64, None]


# --- It stands beside the kernels of the project


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("patterns", [None, ["step_by_step"]])
def test_quick_measures_a_plugin_wherever_it_measures_its_gate(device, patterns):
    registry.plug_in(EXAMPLE)
    points = select_points(load_preset("quick"), {}, patterns, device)
    every = select_points(load_preset("quick"), {}, None, device)
    alike = [p.problem for p in every if p.implementation.gate == "sig" and p.implementation.name != "step_by_step"]
    mine = {point.problem for point in points if point.implementation.name == "step_by_step"}
    assert mine == {problem.with_(chunk_size=None) for problem in alike}
    assert len({problem.d_hv for problem in mine}) >= 3


def test_advise_ranks_it_by_theory():
    from tflabench.conclusions.advise import Demand, advice

    registry.plug_in(EXAMPLE)
    found = advice(Demand(Problem(8, 8, 8192, 256, 512, pass_="fwbw")), find("H100"), ["sig"])
    (mine,) = [choice for choice in found.ranked if choice.kernel.name == "step_by_step"]
    assert (mine.problem.chunk_size, mine.source) == (None, "published bound")
    assert {choice.kernel.name for choice in found.ranked} >= {"hopper_sig", "tfla_sig_xl"}


# --- Entry points of installed packages


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install a distribution with one entry point for a module of this source."""

    def install(source: str, value: str = "my_plugin_module") -> None:
        (tmp_path / "my_plugin_module.py").write_text(source)
        facts = tmp_path / "mine-1.0.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
        (facts / "entry_points.txt").write_text(f"[tflabench.implementations]\nmine = {value}\n")
        registry._installed.cache_clear()

    monkeypatch.syspath_prepend(tmp_path)
    yield install
    sys.modules.pop("my_plugin_module", None)
    registry._installed.cache_clear()


@pytest.mark.parametrize("value", ["my_plugin_module", "my_plugin_module:IMPLEMENTATIONS"])
def test_an_entry_point_needs_no_option(installed, value):
    installed(entry(), value)
    assert [impl.name for impl in registry.plugged()] == ["mine"]
    assert registry.get("mine").family == "mlstm"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("1 / 0", "entry point 'my_plugin_module' (tflabench.implementations) cannot be used: ZeroDivisionError"),
        (entry(name="sdpa"), "an entry point defines 'sdpa', which exists already: it is left out"),
    ],
)
def test_an_entry_point_that_cannot_be_used_is_left_out_with_a_warning(installed, source, message):
    installed(source)
    with pytest.warns(UserWarning, match=re.escape(message)):
        assert registry.plugged() == ()
    assert registry.get("sdpa").family == "attention"
