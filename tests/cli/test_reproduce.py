"""`tflabench reproduce`: which rows answer a figure, what is drawn of them, and what is said where there are none."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest
from synthetic import row_of

from tflabench.bench import machine
from tflabench.bench import sweep as sweeps
from tflabench.cli.main import app
from tflabench.figures import files as figure_files
from tflabench.figures import reproduce
from tflabench.figures.source import Source
from tflabench.implementations.registry import get
from tflabench.problem import Problem
from tflabench.rows.journal import Store
from tflabench.selection.axes import parse_overrides
from tflabench.selection.points import Point

H200 = "NVIDIA H200"
FEW = ["tfla_sig_xl", "nxai_exp_xl", "sdpa_cudnn", "fla_gla", "lightning_attention_2"]


def store(folder: Path, points: list[Point], crashed: str = "nxai_exp_xl") -> None:
    rows = Store(folder, H200)
    for n, point in enumerate(points):
        failed = {"status": "crashed", "reason": "aborted by signal 6"} if point.implementation.name == crashed else {}
        rows.append(row_of(point, None if failed else 1.0 + n % 7, **failed))


def test_figures_are_the_papers_and_have_its_heads():
    assert list(reproduce.FIGURES) == [f"fig{n}" for n in (4, 5, 12, 13, 14, 17, 19, 20)]
    sizes = {
        (point.implementation.name, point.problem.heads, point.problem.d_qk, point.problem.d_hv)
        for point in reproduce.points_of(reproduce.find("fig4"))
    }
    assert {
        ("tfla_sig_xl", 16, 128, 256),
        ("nxai_exp_limit", 16, 128, 256),
        ("fla_gla", 16, 128, 256),
        ("sdpa_cudnn", 32, 128, 128),
        ("flash_attention_3", 32, 128, 128),
        ("mamba2", 64, 64, 64),
        ("mamba", 64, 16, 64),
    } <= sizes
    assert {heads * d_hv for _, heads, _, d_hv in sizes} == {4096}


@pytest.mark.parametrize("name", reproduce.FIGURES)
def test_with_matched_heads_every_kernel_has_the_same(name):
    """Mamba has channels, no heads."""
    points = reproduce.points_of(reproduce.find(name, True))
    sizes: dict[tuple[int, int], set[tuple[int, int, int]]] = {}
    for point in points:
        p = point.problem
        if point.implementation.name != "mamba":
            varied = p.d_hv if name in ("fig13", "fig14") else 0
            sizes.setdefault((p.seq_len, varied), set()).add((p.heads, p.d_qk, p.d_hv))
    assert all(len(own) == 1 for own in sizes.values())


def test_the_presets_without_plain_pytorch():
    for figure in reproduce.FIGURES.values():
        names = {point.implementation.name for point in reproduce.points_of(figure)}
        assert not any("native" in name or name.startswith(("reference", "step")) for name in names)


def test_rows_come_from_the_folder_that_answers_most_points(tmp_path):
    figure = reproduce.find("fig4")
    points = reproduce.points_of(figure, FEW)
    store(tmp_path / "h200" / "some", points[:10])
    store(tmp_path / "h200" / "most", points)
    other = Point(get("sdpa"), Problem(1, 1, 64, 64, 64))
    store(tmp_path / "h200" / "most", [other])
    found = reproduce.stored(points, tmp_path, "paper-fig4")
    assert found
    assert found.folder == tmp_path / "h200" / "most"
    assert {row.point for row in found.rows} == {point.id for point in points}
    assert reproduce.stored(points, tmp_path / "nowhere", "paper-fig4") is None
    assert (
        reproduce.stored(reproduce.points_of(reproduce.find("fig4", True), ["fla_gla"]), tmp_path, "paper-fig4") is None
    )
    store(tmp_path / "h200" / "paper-fig4", points[:1])  # its own sweep's, however little there is of it
    found = reproduce.stored(points, tmp_path, "paper-fig4")
    assert found
    assert found.folder == tmp_path / "h200" / "paper-fig4"


def test_rows_of_todays_kernels_come_first(tmp_path):
    points = reproduce.points_of(reproduce.find("fig4"), ["tfla_sig_xl"])
    older = Store(tmp_path / "h200" / "paper-fig4", H200)
    for each in points:
        older.append(row_of(each).model_copy(update={"kernel_version": 0}))
    store(tmp_path / "h100" / "paper-fig4", points[:2])
    found = reproduce.stored(points, tmp_path, "paper-fig4")
    assert found
    assert found.folder == tmp_path / "h100" / "paper-fig4"


def test_a_part_of_a_figure_has_points_of_the_figure_only():
    figure = reproduce.find("fig12")
    whole = reproduce.points_of(figure)
    part = reproduce.points_of(figure, part=parse_overrides(["seq_len=256,512,8192", "pass=fw"]))
    assert [point.id for point in part] == [
        point.id for point in whole if point.problem.seq_len in (512, 8192) and point.problem.pass_ == "fw"
    ]
    assert len(part) > 10
    assert reproduce.points_of(reproduce.find("fig5"), part={"seq_len": (512,)}) == []


def drawn(figure: reproduce.PaperFigure, points: list[Point], root: Path) -> list[Path]:
    results = reproduce.stored(points, root, figure.preset)
    assert results is not None
    return figure_files.write_figures(figure.draw(figure.name, Source.of(results)), root / "out", ["svg"])


@pytest.mark.parametrize(
    ("name", "stems"),
    [
        ("fig4", ["fig4", "fig4-linear-rnns"]),
        ("fig5", ["fig5-tfla_sig_xl"]),
        ("fig12", ["fig12-memory", "fig12-runtime"]),
        ("fig13", [f"fig13-{what}-d_hv_{d}" for what in ("memory", "runtime") for d in (128, 64)]),
        ("fig14", ["fig14"]),
        ("fig17", ["fig17"]),
    ],
)
def test_draws_what_the_paper_draws(tmp_path, name, stems):
    figure = reproduce.find(name)
    patterns = ["tfla_sig_xl"] if name in ("fig5", "fig17") else FEW
    points = reproduce.points_of(figure, patterns)
    store(tmp_path / "rows", points)
    files = drawn(figure, points, tmp_path)
    assert sorted(path.name for path in files) == sorted(
        f"{stem}.{kind}" for stem in stems for kind in ("csv", "svg", "txt")
    )
    assert all(path.stat().st_size > 200 for path in files)


def test_what_failed_is_in_the_caption_with_its_reason(tmp_path):
    figure = reproduce.find("fig4")
    points = reproduce.points_of(figure, FEW)
    store(tmp_path / "rows", points)
    files = drawn(figure, points, tmp_path)
    (caption,) = (path for path in files if path.name == "fig4.txt")
    assert re.search(r"crashed: mlstm_kernels mLSTMexp xl_chunk .*aborted by signal 6", caption.read_text())


def points_of(comparisons):
    return [point for comparison in comparisons for point in comparison.points]


@pytest.fixture
def on_gpu(monkeypatch):
    """A GPU on which every sweep has its rows at once: what was measured, in order, a sweep each."""
    swept: list[sweeps.Sweep] = []

    def run(sweep: sweeps.Sweep) -> sweeps.Measured:
        swept.append(sweep)
        store(folder_of(sweep), points_of(sweep._comparisons))
        return sweeps.Measured()

    monkeypatch.setattr(machine, "detect", lambda device: machine.Machine("cuda", H200, 2**40))
    monkeypatch.setattr(sweeps.Sweep, "run", run)
    return swept


def folder_of(sweep: sweeps.Sweep) -> Path:
    return sweep._folder


@pytest.fixture
def invoke(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            app(["reproduce", "--device", "cpu", "--format", "svg", *arguments])
        captured = capsys.readouterr()
        return int(end.value.code or 0), captured.out, " ".join(captured.err.split())

    return invoke


def test_without_a_gpu_it_draws_what_is_stored_and_says_so(invoke, tmp_path):
    store(tmp_path / "results/h200/mine", reproduce.points_of(reproduce.find("fig4"), ["sdpa_cudnn"]))
    code, out, err = invoke("fig4", "fig12", "fig17", "--impl", "sdpa_cudnn,fla_gla")
    assert code == 0
    assert "No NVIDIA GPU here" in err
    assert "measuring nothing" in err
    assert "fig4: 16 of 32 points measured, in results/h200/mine" in err
    assert "fig17: theory alone" in err
    assert "Not drawn: no point of fig12 is stored below results: run the same command on a machine with a GPU" in err
    drawn = ["results/h200/mine/figures/fig4", "results/theory/fig17"]
    assert out.splitlines() == [f"{figure}.svg, .txt, .csv" for figure in drawn]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fig3"], "tflabench: no figure is called 'fig3'; did you mean"),
        (["fig5", "-a", "seq_len=512"], "tflabench: no point of fig5 has seq_len=512: `tflabench sweep -a` measures"),
        (["fig4", "--matched-heads"], "tflabench: no point of fig4-matched is stored below results"),
    ],
)
def test_bad_input_is_one_line_and_code_2(invoke, arguments, message):
    code, out, err = invoke(*arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_a_part_of_a_figure_alone_is_drawn_of_what_is_stored(invoke, tmp_path):
    store(tmp_path / "results/h200/mine", reproduce.points_of(reproduce.find("fig12"), ["tfla_sig_xl"]))
    code, out, err = invoke("fig5", "fig12", "--impl", "tfla_sig_xl", "-a", "seq_len=512,8192,65536")
    assert code == 0
    assert "Left out: no point of" not in err
    assert "fig12: 6 of 6 points measured" in err
    (drawn,) = re.findall(r"(\S+fig12-runtime)\.svg, .*\.csv", out)
    assert set(pd.read_csv(f"{drawn}.csv")["seq_len"]) == {512, 8192, 65536}
    _, _, err = invoke("fig5", "fig12", "--impl", "tfla_sig_xl", "-a", "seq_len=512")
    assert "Left out: no point of fig5 has seq_len=512." in err


def test_a_part_of_a_figure_alone_is_measured(invoke, on_gpu):
    part = ["-a", "seq_len=512,8192", "--impl", "tfla_sig_xl", "--timeout", "60"]
    assert invoke("fig12", *part)[0] == 0
    (sweep,) = on_gpu
    assert {point.problem.seq_len for point in points_of(sweep._comparisons)} == {512, 8192}
    assert folder_of(sweep) == Path("results/h200/paper-fig12")
    assert (sweep._rules.protocol.name, sweep._rules.timeout_s) == ("standard", 60.0)


def test_all_figures_are_measured_by_one_station_before_any_is_drawn(invoke, on_gpu, monkeypatch):
    drawn: list[str] = []

    def write(_figures, folder: Path, _formats) -> list[Path]:
        drawn.append(f"{folder.parent.name} after {len(on_gpu)}")
        return []

    monkeypatch.setattr(figure_files, "write_figures", write)
    assert invoke("fig12", "fig5", "--impl", "tfla_sig_xl")[0] == 0
    assert [folder_of(sweep).name for sweep in on_gpu] == ["paper-fig12", "paper-fig5"]
    assert drawn == ["paper-fig12 after 2", "paper-fig5 after 2"]
    assert len({sweep._stations for sweep in on_gpu}) == 1


def test_one_time_limit_holds_for_all_figures(invoke, monkeypatch):
    """The second figure is not reached: its folder has no rows, and is passed over."""
    now = [0.0]

    def measure(sweep: sweeps.Sweep) -> None:
        for point in points_of(sweep._comparisons)[:3]:
            measured = {"percent_of_own_roofline": 40.0, "closed": True, "comparison_id": "one", "samples": 30}
            sweep._keep(sweep._tasks[0], row_of(point).model_copy(update=measured))
        now[0] = 60.0

    monkeypatch.setattr(machine, "detect", lambda device: machine.Machine("cuda", H200, 2**40))
    monkeypatch.setattr(sweeps.Sweep, "_measure", measure)
    monkeypatch.setattr(sweeps.Sweep, "_time_is_up", lambda sweep: now[0] >= 60.0)
    code, out, err = invoke("fig12", "fig5", "--impl", "fla_gla,tfla_sig_xl", "--stop-after", "60")
    assert code == 0
    assert "The time is up: 29 of 32 points are left; the same command measures them." in err
    assert "fig12: 3 of 32 points measured" in err
    assert "Not drawn: no point of fig5 is stored below results: run the same command again" in err
    assert "paper-fig12/figures/fig12-runtime.svg" in out
    assert reproduce.stored(reproduce.points_of(reproduce.find("fig12")), Path("results"), "paper-fig12")
