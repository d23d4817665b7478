"""`import tflabench`: rows as a DataFrame, a figure of them, the best chunk size, and what a sweep refuses."""

from __future__ import annotations

import json
import pydoc
import subprocess
import sys
from typing import Any

import pytest
from synthetic import row, write
from typer.testing import CliRunner

import tflabench
from tflabench.api import _parsed
from tflabench.bench import verifier
from tflabench.bench.profile import point
from tflabench.cli.main import app
from tflabench.problem import InputError, Problem
from tflabench.rows.table import frame, rows_of

ROWS = [row(name, ms, seq_len=T) for name, ms in (("tfla_sig_xl", 1.0), ("sdpa", 2.0)) for T in (512, 1024)]


def heights(figure: Any) -> list[list[float]]:
    """The y of every line with several points in the first panel of a figure."""
    lines = (list(line.get_ydata()) for line in figure.axes[0].lines)
    return [line for line in lines if len(line) > 1]


def test_importing_it_is_light():
    code = """
import sys
import tflabench
tflabench.optimal_chunk_size("H100")
print([name for name in ("torch", "pandas", "matplotlib", "pyarrow") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_load_reads_a_folder_and_all_below(tmp_path):
    write(tmp_path / "one", ROWS[:1])
    write(tmp_path / "other" / "deep", ROWS[1:])
    assert tflabench.load(tmp_path / "one")["seq_len"].tolist() == [512]
    assert len(tflabench.load(str(tmp_path))) == len(ROWS)
    with pytest.raises(tflabench.InputError, match="nowhere does not exist"):
        tflabench.load("nowhere")


def test_rows_survive_the_way_through_a_table():
    rows = [*ROWS, row("mamba2", ms=None, chunk_size=None, details={"note": "x"})]
    assert rows_of(frame(rows)) == rows
    assert rows_of(frame(rows).assign(mine=1).iloc[3:5]) == rows[3:5]


@pytest.mark.parametrize(
    "options",
    [
        {"gpu": "H100", "d_qk": 256, "d_hv": 512},
        {"gpu": "A100", "d_qk": 64, "d_hv": 64, "gate": "exp", "seq_len": 300, "pass_": "fwbw"},
        {"gpu": "H100", "memory_budget": "2GiB", "state_dtype": "bfloat16"},
    ],
)
def test_the_best_chunk_size_is_the_commands(options):
    words = [f"--{name.rstrip('_').replace('_', '-')}={value}" for name, value in options.items()]
    told = json.loads(CliRunner().invoke(app, ["optimal-chunk", *words, "--json"]).stdout)
    found = tflabench.optimal_chunk_size(**options)
    assert (type(found), found) == (int, told["recommended"])


def test_the_best_chunk_size_refuses_what_the_command_does():
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"gpu": "H1000"}, "no GPU is called 'H1000'"),
        ({"gate": "tanh"}, "gate is 'tanh'"),
        ({"gpu": 3}, "gpu is 3: it must be a string"),
        ({"d_qk": "256"}, "d_qk is '256': it must be a whole number"),
        ({"d_hv": True}, "d_hv is True: it must be a whole number"),
        ({"memory_budget": "1MiB"}, "memory_budget is 1.0 MiB: it must be at least"),
    )
    for options, message in cases:
        with pytest.raises(InputError, match=message):
            tflabench.optimal_chunk_size(**{"gpu": "H100", **options})


def test_plot_returns_a_figure_with_a_line_an_implementation():
    from matplotlib.figure import Figure

    figure = tflabench.plot(frame(ROWS), axis="seq_len", highlight="tfla*")
    assert isinstance(figure, Figure)
    assert sorted(heights(figure)) == [[1.0, 1.0], [2.0, 2.0]]
    memory = tflabench.plot(frame(ROWS), quantity="memory")
    assert "peak memory" in memory.axes[0].get_ylabel()


def test_plot_takes_the_setting_of_most_rows_and_the_last_row_of_a_point():
    late = row("sdpa", 3.0, seq_len=512, started_at="2026-12-01T00:00:00+00:00")
    rows = [late, *ROWS, *[row("nxai_sig_xl", 5.0, seq_len=T) for T in (512, 1024)]]
    rows += [row("sdpa", 9.0, seq_len=T, dtype="float32", point=f"float32/{T}") for T in (512, 1024)]
    lines = heights(tflabench.plot(frame(rows)))
    assert [3.0, 2.0] in lines
    assert [5.0, 5.0] in lines
    assert [9.0, 9.0] not in lines


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (ROWS, {"axis": "seqlen"}, "axis is 'seqlen': it must be one of seq_len"),
        (ROWS, {"quantity": "speed"}, "quantity is 'speed': it must be one of runtime, memory"),
        (ROWS, {"highlight": "tfla_sig"}, "highlight is 'tfla_sig': no implementation is called so; did you mean"),
        ([], {}, "the table has no rows"),
        ([*ROWS, row(device="NVIDIA H100")], {}, "the table has rows of NVIDIA H100 and NVIDIA H200"),
    ],
)
def test_plot_says_what_it_cannot_draw(rows, options, message):
    with pytest.raises(InputError, match=message):
        tflabench.plot(frame(rows), **options)


def test_a_table_that_is_none_of_ours_is_refused():
    with pytest.raises(InputError, match="the table has no column 'point'"):
        tflabench.plot(frame(ROWS).drop(columns="point"))
    with pytest.raises(InputError, match="the table's batch is 'many'"):
        tflabench.plot(frame(ROWS).assign(batch="many"))


@pytest.mark.parametrize("path", ["", None, ["results"]])
def test_what_is_no_folder_is_refused(path):
    with pytest.raises(InputError, match=r"path is .*: it must be a results folder"):
        tflabench.load(path)


def test_what_is_no_table_is_refused():
    with pytest.raises(InputError, match="df is a str: it must be a DataFrame"):
        tflabench.plot("results/h100/quick")  # type: ignore[arg-type]


def test_axes_are_values_ranges_or_several():
    assert _parsed({"seq_len": [512, "1024:2048:x2"], "chunk_size": [None, 64], "pass_": "both", "batch": 2}) == {
        "seq_len": (512, 1024, 2048),
        "chunk_size": (None, 64),
        "pass": ("fw", "fwbw"),
        "batch": (2,),
    }
    assert _parsed({"chunk_size": None}) == {"chunk_size": (None,)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 2.5}, "axis batch has '2.5': it must be an integer"),
        ({"impl": ["sdpa_flash"]}, "none of the 8 points can run on cpu"),
        ({"impl": "reference_sig", "out": __file__}, "cannot be written"),
        ({"timeout": float("nan")}, "timeout is nan"),
        ({"stop_after": -1}, "stop_after is -1: it must be a finite number of seconds, 0 or more"),
        ({"preset": 3}, "preset is 3: it must be a string"),
        ({"impl": 3}, "names are 3: they must be a string, or a list of strings"),
        ({"gpus": 2}, "--gpus 2 and --device cpu are both given"),
    ],
)
def test_sweep_says_what_it_cannot_measure(options: dict[str, Any], message):
    with pytest.raises(InputError, match=message):
        tflabench.sweep(device="cpu", **options)


def test_dir_and_help_show_the_api():
    assert {*tflabench.__all__} <= {*dir(tflabench)}
    shown = pydoc.plain(pydoc.render_doc(tflabench))
    assert all(f"    {name}(" in shown for name in ("advise", "compare", "sweep", "verify", "profile", "roofline"))


def test_verify_checks_what_the_command_does(monkeypatch):
    def verify(points: Any, machine: Any, **options: Any) -> verifier.Verified:
        lines = [{"name": name, "error": 0.0, "allowed": 1.0, "wrong": False} for name in ("forward", "dq")]
        return verifier.Verified([{"point": point.id, "errors": lines} for point in points], {}, interrupted=False)

    monkeypatch.setattr(verifier, "verify", verify)
    found = tflabench.verify(impl="reference_sig", device="cpu", seq_len=16)
    assert found["name"].tolist()[:2] == ["forward", "dq"]
    assert found["point"].str.contains("fwbw").all()
    with pytest.raises(InputError, match="no such preset"):
        tflabench.verify("no such preset")


def test_profile_takes_apart_what_the_command_does(monkeypatch):
    monkeypatch.setattr(point, "profile", lambda point, machine, **options: (point.problem, options["calls"]))
    seen: Any = tflabench.profile(device="cpu", seq_len=32, chunk_size=16, calls=3)
    assert seen == (Problem(1, 2, 32, 64, 128, chunk_size=16, dtype="float32", pass_="fw", gates="usual"), 3)
    with pytest.raises(InputError, match="calls is 0"):
        tflabench.profile(device="cpu", calls=0)
    with pytest.raises(InputError, match="it must match one"):
        tflabench.profile(device="cpu", impl="reference_*")


def test_compare_has_the_verdicts_of_the_command(tmp_path):
    for name, times in (("one", 1.0), ("other", 2.0)):
        write(tmp_path / name, [row("tfla_sig_xl", times, seq_len=T) for T in (512, 1024)])
    folders = [str(tmp_path / name) for name in ("one", "other")]
    found = tflabench.compare(*folders)
    told = json.loads(CliRunner().invoke(app, ["compare", *folders, "--json"]).stdout)["points"]
    assert found[["seq_len", "ratio", "verdict"]].to_dict("records") == [
        {name: point[name] for name in ("seq_len", "ratio", "verdict")} for point in told
    ]
    assert found["ratio"].tolist() == [2.0, 2.0]
    assert found["b.ms_median"].tolist() == [2.0, 2.0]
    with pytest.raises(InputError, match="threshold is 5"):
        tflabench.compare(*folders, threshold=5)


def test_advice_is_the_commands():
    given: dict[str, Any] = {"gpu": "H100", "heads": 4, "seq_len": 2048, "gate": "sig", "memory_budget": "8GiB"}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    told = json.loads(CliRunner().invoke(app, ["advise", *words, "--json"]).stdout)["ranked"]
    found = tflabench.advise(**given)
    assert found["implementation"].tolist() == [choice["implementation"] for choice in told]
    assert found["step_ms"].tolist() == [choice["step_ms"] for choice in told]
    with pytest.raises(InputError, match="gate is 'tanh'"):
        tflabench.advise("H100", gate="tanh")
    with pytest.raises(InputError, match="nothing fits"):
        tflabench.advise("H100", memory_budget="1MiB")


def test_a_roofline_has_the_roofs_and_chunk_sizes_asked_for():
    figure = tflabench.roofline(["A100", "H100"], chunk_size=[64, 256])
    (axes,) = [axes for axes in figure.axes if axes.lines]
    assert {"64", "256"} <= {text.get_text().removeprefix("L = ") for text in axes.texts}
    with pytest.raises(InputError, match="no GPU is called 'H1000'"):
        tflabench.roofline("H1000")
