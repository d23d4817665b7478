"""Figures 15 to 22, the error of both models and time by term over L, drawn from theory and from stored rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from typer.testing import CliRunner, Result

from tflabench.cli.main import app
from tflabench.conclusions import model_error
from tflabench.figures import model_errors as model
from tflabench.figures import overlay, paper
from tflabench.problem import InputError
from tflabench.rows.load import find_results, read_results, read_rows
from tflabench.rows.schema import Row
from tflabench.theory.chunk_size import Tradeoff
from tflabench.theory.hardware import find

FIG_17 = {"batch": 8, "heads": 8, "seq_len": 8192, "d_qk": 256, "d_hv": 512}
KINDS = {  # implementation -> formulation, package, gate, milliseconds forward by L
    "tfla_sig_xl": ("chunkwise", "triton", "sig", {128: 2.12, 256: 2.00, 512: 2.10}),
    "nxai_exp_xl": ("chunkwise", "mlstm_kernels", "exp", {256: 5.48}),
    "hopper_sig": ("fused", "triton", "sig", {8192: 0.667}),
    "reference_sig": ("chunkwise", "torch", "sig", {64: 900.0}),
}


def row(name: str, chunk_size: int, ms: float, **changes: object) -> Row:
    formulation, package, gate, _ = KINDS[name]
    fields = {
        **FIG_17, "run_id": "run", "point": f"{name}/{chunk_size}/{changes}", "implementation": name, "title": name,
        "family": "mlstm", "gate": gate, "formulation": formulation, "package": package, "pass": "fw",
        "chunk_size": chunk_size, "dtype": "bfloat16", "inputs": "normal", "seed": 0, "device": "NVIDIA H200",
        "status": "ok", "ms_median": ms, "protocol": "default", "started_at": "2026-11-21T12:00:00+00:00",
    }  # fmt: skip
    return Row.model_validate(fields | changes)


def folder(path: Path, rows: list[Row], ceilings: bool = True) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "journal.jsonl").write_text("".join(row.model_dump_json(by_alias=True) + "\n" for row in rows))
    measured = {"flops_per_s": 782e12, "bytes_per_s": 4.26e12, "provenance": "measured", "source": "calibrate"}
    run = {"ceilings": {"bfloat16": measured}} if ceilings else {}
    (path / "environment.json").write_text(json.dumps({"runs": {"run": run}}))
    return path


@pytest.fixture
def results(tmp_path: Path) -> Path:
    rows = [row(name, size, ms) for name, kind in KINDS.items() for size, ms in kind[3].items()]
    return folder(tmp_path / "results", rows)


def run(*argv: str) -> Result:
    return CliRunner().invoke(app, list(argv), env={"COLUMNS": "120"})


def refused(said: str, *argv: str) -> None:
    result = run(*argv)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


def words(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(Text))


class TestPaper:
    @pytest.mark.parametrize("name", paper.FIGURES)
    @pytest.mark.parametrize(("gate", "pass_"), [("sig", "fw"), ("exp", "fwbw")])
    def test_every_figure_is_drawn_from_theory_alone(self, name, gate, pass_):
        figure = paper.FIGURES[name](gate, pass_)
        text = words(figure)
        assert f"Fig. {name[3:]}, mLSTM{gate} {'forward + backward' if pass_ == 'fwbw' else 'forward'}" in text
        assert "Modelled: " in text
        assert ("section B.3" in text) == (pass_ == "fwbw")
        for ax in figure.axes:
            assert ax.lines
            assert ax.get_xlabel()

    def test_the_marked_optima_are_those_of_the_equations(self):
        text = words(paper.fig17("sig", "fw"))
        for gpu in ("paper-A100", "paper-H100", "H200", "paper-B200"):
            best = Tradeoff(overlay.PAPER, "sig", find(gpu).ceilings).runtime_optimal
            assert f"L = {best:.0f}" in text
        assert "L = 634" in text

    @pytest.mark.parametrize("name", ["fig17", "fig19", "fig20", "fig22"])
    def test_measured_rows_are_laid_over(self, results, name):
        text = words(paper.FIGURES[name]("sig", "fw", read_rows(results)))
        assert "tfla_sig_xl, measured" in text
        assert "reference_sig" not in text
        assert "Measured on NVIDIA H200, 2026-11-21" in text

    def test_points_lie_where_they_were_measured(self, results):
        figure = paper.fig17("sig", "fw", read_rows(results))
        (panel,) = (ax for ax in figure.axes if ax.get_title().startswith("H200"))
        drawn = {tuple(np.asarray(line.get_xdata())): list(np.asarray(line.get_ydata())) for line in panel.lines}
        assert drawn[(128, 256, 512)] == [2.12, 2.00, 2.10]
        assert drawn[(8192,)] == [0.667]

    def test_fused_rows_have_the_flops_of_fused_kernels(self, results):
        """Counted as chunks of 8192 they would lie far above the roof."""
        figure = paper.fig19("sig", "fw", read_rows(results))
        roof = find("H200").ceilings.flops_per_s / 1e12
        measured = [line for line in figure.axes[0].lines if line.get_marker() not in ("None", "o", "")]
        assert measured
        assert all(np.max(line.get_ydata()) < roof for line in measured)

    def test_rows_of_another_gate_leave_theory_and_say_so(self, tmp_path):
        rows = read_rows(folder(tmp_path / "one", [row("nxai_exp_xl", 256, 5.48)]))
        assert "hold none of these kernels" in words(paper.fig17("sig", "fw", rows))
        assert "nxai_exp_xl, measured" in words(paper.fig17("exp", "fw", rows))  # a sweep of one point

    def test_a_known_gpu_that_the_paper_has_not_gets_a_panel(self, tmp_path):
        rows = read_rows(folder(tmp_path / "l40s", [row("tfla_sig_xl", 64, 9.0, device="NVIDIA L40S")]))
        assert [ax.get_title().split(",")[0] for ax in paper.fig17("sig", "fw", rows).axes][-1] == "L40S"

    def test_a_gpu_without_specs(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        where = folder(tmp_path / "other", [row("tfla_sig_xl", 64, 9.0, device="NVIDIA Z900")])
        with pytest.raises(InputError, match="'NVIDIA Z900', whose peak rate and bandwidth are not known"):
            paper.fig17("sig", "fw", read_rows(where))
        refused("run `tflabench calibrate` on it", "model-error", str(where))


class TestTheoryCommand:
    def test_writes_a_file_a_figure_gate_and_pass_and_prints_them(self, tmp_path, results):
        result = run(
            "theory", "fig16", "fig22", "--out", str(tmp_path / "new"), "--overlay", str(results), "--gate", "sig"
        )
        assert result.exit_code == 0, result.stderr
        names = [f"{name}-sig-{pass_}.png" for name in ("fig16", "fig22") for pass_ in ("fw", "fwbw")]
        assert result.stdout.split() == [str(tmp_path / "new" / name) for name in names]
        assert all((tmp_path / "new" / name).read_bytes().startswith(b"\x89PNG") for name in names)

    @pytest.mark.parametrize(
        ("argv", "said"),
        [
            (["fig14"], "figure is 'fig14': it must be one of all, fig15"),
            (["fig16", "--gate", "tanh"], "gate is 'tanh': it must be one of exp, sig"),
            (["fig16", "--pass", "decode"], "pass is 'decode': it must be one of fw, fwbw"),
            (["fig16", "--format", "gif"], "format is 'gif': it must be one of png, svg, pdf"),
            (["fig16", "--overlay", "nowhere"], "nowhere does not exist"),
            (["fig16", "--out", "/proc/figures"], "--out is /proc/figures, which cannot be written"),
        ],
    )
    def test_bad_input(self, argv, said):
        refused(said, "theory", *argv)


class TestModelError:
    def test_the_table_has_both_models_and_names_what_is_not_modelled(self, results):
        result = run("model-error", str(results))
        assert result.exit_code == 0, result.stderr
        lines = [line.split() for line in result.stdout.splitlines()]
        (line,) = (line for line in lines if line[:3] == ["tfla_sig_xl", "fw", "3"])
        assert int(line[5].rstrip("%")) < int(line[3].rstrip("%"))
        assert "does not describe: reference_sig (1)" in result.stdout
        assert "nxai_exp_xl fw B=8 T=8192 heads 8x256/512 L=256: 5.48 ms measured" in result.stdout

    def test_errors_of_fitted_and_held_out_rows_stand_apart(self, tmp_path):
        """tfla_sig_xl at 256/512 has been seen by no constant, at 128/256 on an H200 it has, on an H100 not."""
        for device in ("NVIDIA H200", "NVIDIA H100 80GB HBM3"):
            small = row("tfla_sig_xl", 256, 1.2, device=device, d_qk=128, d_hv=256)
            folder(tmp_path / device, [row("tfla_sig_xl", 256, 2.0, device=device), small], ceilings=False)
        paths = [str(tmp_path / device) for device in ("NVIDIA H200", "NVIDIA H100 80GB HBM3")]
        got = json.loads(run("model-error", *paths, "--json").stdout)
        counts = {
            (each["gpu"], each["kernels"]): (each["fitted"]["rows"], each["held_out"]["rows"])
            for each in got["families"]
        }
        assert counts == {
            ("H200 SXM", "tfla sig"): (1, 1), ("H200 SXM", "all"): (1, 1),
            ("H100 SXM", "tfla sig"): (0, 2), ("H100 SXM", "all"): (0, 2),
        }  # fmt: skip
        lines = [line.split() for line in run("model-error", *paths, "--fit").stdout.splitlines()]
        (line,) = (line for line in lines if line[:3] == ["H100", "tfla", "sig"])
        assert line[3:5] == ["0", "-"]
        assert ["H200", "SXM,", "128/256"] in [line[:3] for line in lines]

    def test_a_row_in_two_folders_counts_once(self, tmp_path):
        for name in ("one", "other"):
            folder(tmp_path / name, [row("tfla_sig_xl", 256, 2.0)])
        assert len(model_error.judge(find_results(tmp_path)).judged) == 1

    def test_constants_are_listed_with_their_origin(self):
        printed = run("model-error", "--constants").stdout.splitlines()
        assert "fitted on rows of the H200 with heads of 128/256" in printed
        assert any(line.split()[:3] == ["ROUND_TRIP_S", "6.9e-07", "s"] for line in printed)
        listed = json.loads(run("model-error", "--constants", "--json").stdout)["constants"]
        assert {"name", "value", "unit", "meaning", "origin"} == set(listed[0])

    def test_json_has_every_term(self, results):
        got = json.loads(run("model-error", str(results), "--json").stdout)
        assert {entry["implementation"] for entry in got["errors"]} == {
            "tfla_sig_xl",
            "nxai_exp_xl",
            "hopper_sig",
            "all",
        }
        for entry in got["rows"]:
            assert sum(entry["ms_by_term"].values()) == pytest.approx(entry["ms_calibrated"])
        assert got["not_described"] == {"reference_sig": 1}

    def test_measured_roofs_come_from_the_run_and_else_from_the_datasheet(self, results, tmp_path):
        assert [c.flops_per_s for c in model_error.judge([read_results(results)]).roofs["calibrated"]] == [782e12]
        bare = folder(tmp_path / "bare", [row("tfla_sig_xl", 128, 2.12)], ceilings=False)
        assert model_error.judge([read_results(bare)]).roofs["calibrated"] == [find("H200").ceilings]

    def test_rows_that_lack_what_the_model_needs_are_counted_not_fatal(self, tmp_path):
        lacking = [
            row("tfla_sig_xl", 128, 2.0),
            row("tfla_sig_xl", 256, 9.0, dtype="float32"),
            row("hopper_sig", 64, 1.0).model_copy(update={"chunk_size": None}),
            row("tfla_sig_xl", 512, 1.0, status="oom", ms_median=None),
        ]
        verdict = model_error.judge([read_results(folder(tmp_path / "some", lacking))])
        assert len(verdict.judged) == 1
        assert verdict.others == {"tfla_sig_xl float32": 1, "hopper_sig bfloat16": 1}

    def test_folders_below_are_taken_together(self, tmp_path):
        for n, size in enumerate((128, 256)):
            folder(tmp_path / "all" / str(n), [row("tfla_sig_xl", size, 2.0)])
        got = json.loads(run("model-error", str(tmp_path / "all"), "--json").stdout)
        assert got["errors"][-1]["rows"] == 2

    def test_each_device_is_held_against_its_own_roofs_and_drawn_by_itself(self, tmp_path):
        for device in ("NVIDIA H200", "NVIDIA A100-SXM4-80GB"):
            folder(tmp_path / device, [row("tfla_sig_xl", 128, 2.0, device=device)], ceilings=False)
        verdict = model_error.judge(find_results(tmp_path))
        assert verdict.judged[0].calibrated > 1.5 * verdict.judged[1].calibrated  # the A100
        assert [stem for stem, _ in model.breakdowns(verdict)] == [
            "breakdown-a100-80gb-tfla_sig_xl-fw", "breakdown-h200-tfla_sig_xl-fw"
        ]  # fmt: skip

    def test_figures_stack_the_terms_to_the_prediction(self, results):
        verdict = model_error.judge([read_results(results)])
        drawn = dict(model.breakdowns(verdict))
        assert list(drawn) == [f"breakdown-{name}-fw" for name in ("tfla_sig_xl", "nxai_exp_xl", "hopper_sig")]
        bars = drawn["breakdown-tfla_sig_xl-fw"].axes[0]
        ticks = [label.get_text() for label in bars.get_xticklabels()]
        tops: dict[float, float] = {}
        for bar in bars.patches:
            centre = bar.get_x() + bar.get_width() / 2  # type: ignore[attr-defined]
            tops[centre] = tops.get(centre, 0) + bar.get_height()  # type: ignore[attr-defined]
        for judged in verdict.judged:
            if judged.implementation == "tfla_sig_xl":
                assert tops[ticks.index(str(judged.problem.chunk_size))] == pytest.approx(judged.calibrated * 1e3)
        assert "measured best: 256" in words(drawn["breakdown-tfla_sig_xl-fw"])
        assert len(drawn["breakdown-hopper_sig-fw"].axes) == 1  # nothing moves its best L
        assert set(model.TERM_COLOURS) == set(verdict.judged[0].terms)

    def test_out_writes_the_figures(self, results, tmp_path):
        result = run("model-error", str(results), "--out", str(tmp_path / "drawn"))
        assert result.exit_code == 0
        assert (tmp_path / "drawn" / "model-error.png").exists()
        assert len(list((tmp_path / "drawn").iterdir())) == 4

    def test_bad_input(self, tmp_path):
        refused("DIR is not given", "model-error")
        refused("holds no results", "model-error", str(tmp_path))
        (tmp_path / "empty").mkdir()
        (tmp_path / "empty" / "journal.jsonl").write_text("")
        refused("holds no rows yet", "model-error", str(tmp_path / "empty"))
        other = row("tfla_sig_xl", 64, 1.0).model_dump(by_alias=True) | {"schema_version": 99}
        (tmp_path / "empty" / "journal.jsonl").write_text(json.dumps(other) + "\n")
        refused("was written with row schema 99", "model-error", str(tmp_path / "empty"))
        plain = folder(tmp_path / "plain", [row("reference_sig", 64, 9.0)])
        refused("holds no measured row that the calibrated model describes", "model-error", str(plain))
