"""Figures 15 to 22 of the paper, from theory and from stored rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import synthetic
from typer.testing import CliRunner, Result

from tflabench.cli.main import app
from tflabench.figures import paper
from tflabench.figures.model import Band, Circle, Curve, Figure
from tflabench.problem import InputError, Problem
from tflabench.rows.load import read_rows
from tflabench.rows.schema import Row
from tflabench.theory import fused
from tflabench.theory.chunk_size import Tradeoff
from tflabench.theory.cost import GATES
from tflabench.theory.hardware import find
from tflabench.theory.launches import Modelled
from tflabench.theory.roofline import time_bounds

FIG_17 = {"batch": 8, "heads": 8, "seq_len": 8192, "d_qk": 256, "d_hv": 512}
KINDS = {  # implementation -> formulation, package, gate, milliseconds forward by L
    "tfla_sig_xl": ("chunkwise", "triton", "sig", {128: 2.12, 256: 2.00, 512: 2.10}),
    "nxai_exp_xl": ("chunkwise", "mlstm_kernels", "exp", {256: 5.48}),
    "hopper_sig": ("fused", "triton", "sig", {8192: 0.667}),
    "reference_sig": ("chunkwise", "torch", "sig", {64: 900.0}),
}


def row(name: str, chunk_size: int, ms: float, **changes: object) -> Row:
    formulation, package, gate, _ = KINDS[name]
    fields = {**FIG_17, "gate": gate, "formulation": formulation, "package": package}
    fields |= {"implementation": name, "title": name, "point": f"{name}/{chunk_size}/{changes}"}
    return synthetic.row(ms=ms, chunk_size=chunk_size, **fields | changes)  # type: ignore[arg-type]


def folder(path: Path, rows: list[Row]) -> Path:
    measured = {"flops_per_s": 782e12, "bytes_per_s": 4.26e12, "provenance": "measured", "source": "calibrate"}
    return synthetic.write(path, rows, run={"ceilings": {"bfloat16": measured}})


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
    return "\n".join((figure.title, figure.setting, *(panel.title for panel in figure.panels), *figure.caption))


def items(figure: Figure, kind: type) -> list:
    return [item for panel in figure.panels for item in panel.items if isinstance(item, kind)]


def named(figure: Figure) -> dict[str, Curve]:
    return {curve.label: curve for curve in items(figure, Curve) if curve.label}


class TestPaper:
    @pytest.mark.parametrize("number", [17, 19, 20, 22])
    def test_kernels_of_gla_are_laid_over_its_theory(self, number, tmp_path):
        gla = {"family": "linear_attention", "gate": None, "formulation": "chunkwise"}
        rows = [row("tfla_sig_xl", 64, 1.0)]
        rows += [row("tfla_sig_xl", size, 2.0, implementation="tfla_gla_xl", title="GLA", **gla) for size in (128, 256)]
        rows += [row("tfla_sig_xl", 16, 9.0, implementation="gla_chunk_fuse", **gla)]
        figure = paper.FIGURES[f"fig{number}"]("gla", "fw", read_rows(folder(tmp_path / "gla", rows)))
        (measured,) = {curve.name for curve in items(figure, Curve) if curve.rows}
        assert measured == "tfla_gla_xl"
        assert "fused" not in words(figure).lower()
        assert "a decay a channel" in words(figure)

    @pytest.mark.parametrize("name", paper.FIGURES)
    @pytest.mark.parametrize(("gate", "pass_"), [("sig", "fw"), ("exp", "fwbw"), ("gla", "fw")])
    def test_every_figure_is_made_from_theory_alone(self, name, gate, pass_):
        figure = paper.FIGURES[name](gate, pass_)
        assert figure.stem == f"{name}-{gate}-{pass_}"
        backward = pass_ == "fwbw"
        assert figure.title.startswith(f"{GATES[gate].title} forward{' + backward' if backward else ''}, theory: ")
        assert f"Fig. {name[3:]} of the paper" in figure.caption[0]
        assert "Modelled: " in words(figure)
        assert ("section B.3" in words(figure)) == backward
        assert figure.rows is None
        for panel in figure.panels:
            lit = [item for item in panel.items if isinstance(item, Curve) and item.label]
            assert 1 <= len(lit) <= 7
            assert panel.x.label
            assert panel.y.label

    def test_flops_have_their_least_at_the_ring_and_end_near_the_parallel_form(self):
        figure = paper.fig15("sig", "fw")
        curve = named(figure)["F_causal = 0.5"]  # of the last panel: d_qk = 64, d_hv = 128
        ring = min((note for note in figure.panels[2].items if isinstance(note, Circle)), key=lambda note: -note.x)
        assert ring.y == pytest.approx(np.min(curve.y), rel=1e-3)
        ends = [own for own in figure.panels[2].items if isinstance(own, Curve) and not own.joined]
        assert curve.y[-1] == pytest.approx(ends[0].y[0], rel=0.02)

    def test_the_optima_grow_with_the_head_dimension(self):
        curve = named(paper.fig16("sig", "fw"))["F_causal = 0.5"]
        assert list(curve.y) == sorted(curve.y)
        best = Tradeoff(Problem(1, 1, 8192, 2048, 2048), "sig", find("H100").ceilings).flop_optimal
        assert curve.y[-1] == pytest.approx(best)

    def test_the_named_optima_are_those_of_the_equations(self):
        figure = paper.fig17("sig", "fw")
        for gpu in ("paper-A100", "paper-H100", "H200", "paper-B200"):
            best = Tradeoff(paper.PAPER, "sig", find(gpu).ceilings).runtime_optimal
            assert f"{gpu.removeprefix('paper-')}: L = {best:.0f}" in named(figure)
        assert figure.title.endswith("H100 takes the least time at L\u00a0=\u00a0634")

    def test_all_lines_of_the_runtime_are_the_same_bound(self):
        line = named(paper.fig17("sig", "fw"))["fused, H100"]
        counted = fused.cost(paper.PAPER, Modelled("fused", "sig"), int(line.x[-1]))
        upper = time_bounds(counted, find("paper-H100").ceilings).upper
        assert line.y[-1] >= 0.95e3 * upper, "computing and moving add up, as in the lines of chunks"

    @pytest.mark.parametrize("name", ["fig17", "fig19", "fig20", "fig22"])
    def test_measured_rows_are_laid_over(self, results, name):
        figure = paper.FIGURES[name]("sig", "fw", read_rows(results))
        measured = {curve.name: curve for curve in items(figure, Curve) if curve.name}
        assert "tfla_sig_xl" in measured
        assert "reference_sig" not in measured
        assert list(figure.rows.loc[list(measured["tfla_sig_xl"].rows), "implementation"].unique()) == ["tfla_sig_xl"]
        assert "Measured on NVIDIA H200, 2026-11-21." in figure.caption
        assert any("measured" in key.label for key in figure.keys)

    def test_points_lie_where_they_were_measured(self, results):
        figure = paper.fig17("sig", "fw", read_rows(results))
        drawn = {curve.name: (list(curve.x), list(curve.y)) for curve in items(figure, Curve)}
        assert drawn["tfla_sig_xl"] == ([128, 256, 512], [2.12, 2.00, 2.10])
        assert drawn["hopper_sig"] == ([8192], [0.667])
        assert figure.title.endswith("the least time at L\u00a0=\u00a0529, the best measured chunkwise kernel at 256")
        (band,) = items(figure, Band)
        theory = named(figure)["H200: L = 529"]
        assert (band.colour, list(band.upper)) == (theory.ink.colour, list(theory.y))

    def test_of_two_rows_at_one_chunk_size_the_later_counts(self, tmp_path):
        later = row("tfla_sig_xl", 128, 1.9, started_at="2026-11-22T12:00:00+00:00", seed=1)
        rows = read_rows(folder(tmp_path / "twice", [later, row("tfla_sig_xl", 128, 2.12)]))
        (own,) = paper.MeasuredSweep.of(rows, "sig", "fw").lines()
        assert list(own.ms) == [1.9]

    def test_the_fastest_measured_chunk_size_lies_at_the_intensity_of_its_gpu(self, results):
        points = [own for own in items(paper.fig22("sig", "fw", read_rows(results)), Curve) if own.name]
        assert [(own.label, list(own.x), list(own.y)) for own in points] == [
            ("TFLA xl_chunk: 256", [find("H200").ceilings.intensity], [256])
        ]

    def test_fused_rows_have_the_flops_of_fused_kernels(self, results):
        """Counted as chunks of 8192 they would lie far above the roof."""
        figure = paper.fig19("sig", "fw", read_rows(results))
        roof = find("H200").ceilings.flops_per_s / 1e12
        measured = [curve for curve in items(figure, Curve) if curve.name]
        assert len(measured) == 2
        assert all(np.max(curve.y) < roof for curve in measured)

    def test_rows_of_another_gate_leave_theory_and_say_so(self, tmp_path):
        rows = read_rows(folder(tmp_path / "one", [row("nxai_exp_xl", 256, 5.48)]))
        alone = paper.fig17("sig", "fw", rows)
        assert "hold none of these kernels" in words(alone)
        assert alone.rows is None
        assert "mlstm_kernels xl_chunk" in named(paper.fig17("exp", "fw", rows))  # a sweep of one point

    def test_a_gpu_without_specs(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        where = folder(tmp_path / "other", [row("tfla_sig_xl", 64, 9.0, device="NVIDIA Z900")])
        with pytest.raises(InputError, match="'NVIDIA Z900', whose peak rate and bandwidth are not known"):
            paper.fig17("sig", "fw", read_rows(where))


class TestTheoryCommand:
    def test_writes_a_file_a_figure_gate_and_pass_and_prints_them(self, tmp_path, results):
        out = tmp_path / "new"
        result = run("theory", "fig16", "fig22", "--out", str(out), "--overlay", str(results), "--gate", "sig")
        assert result.exit_code == 0, result.stderr
        stems = [f"{name}-sig-{pass_}" for name in ("fig16", "fig22") for pass_ in ("fw", "fwbw")]
        assert result.stdout.splitlines() == [f"{out / stem}.png, .txt, .csv" for stem in stems]
        assert all((out / f"{stem}.png").read_bytes().startswith(b"\x89PNG") for stem in stems)
        assert (out / "fig16-sig-fw.txt").read_text().startswith("mLSTMsig forward, theory: ")

    def test_rows_that_cannot_be_laid_over_are_told_of(self, tmp_path, results):
        overlay = ["--out", str(tmp_path / "new"), "--overlay", str(results)]
        result = run("theory", "fig17", "--gate", "gla", "--pass", "fw", *overlay)
        assert (result.exit_code, result.stderr) == (0, f"fig17-gla-fw: {paper.MISSING}\n")
        refused("figures fig15 take no rows", "theory", "fig15", *overlay)

    @pytest.mark.parametrize(
        ("argv", "said"),
        [
            (["fig14"], "figure is 'fig14': it must be one of all, fig15"),
            (["fig16", "--pass", "decode"], "pass is 'decode': it must be one of fw, fwbw"),
            (["fig16", "--out", "/proc/figures"], "--out is /proc/figures, which cannot be written"),
        ],
    )
    def test_bad_input(self, argv, said):
        refused(said, "theory", *argv)
