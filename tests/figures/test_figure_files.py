"""The files of a figure: the drawing, its caption, and its rows."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from tflabench.figures.axes import linear
from tflabench.figures.files import write_figures
from tflabench.figures.model import Curve, Figure, Ink, Panel
from tflabench.problem import InputError

LINE = Curve("a line", [0.0, 1.0], [0.0, 1.0], Ink("#0072b2"))
PANEL = Panel("a panel", linear("x", 0, 1), linear("y", 0, 1), (LINE,))
FIGURE = Figure("some-figure", "a title", "a setting", (PANEL,), caption=("a source",))
ROWS = pd.DataFrame({"point": ["one"], "chunk_asked": ["auto"], "timed": [True], "details": [{"b": 1}]})


@pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_a_figure_is_written_with_its_caption(tmp_path, suffix, magic):
    files = write_figures([FIGURE], tmp_path, [suffix])
    assert [path.name for path in files] == [f"some-figure.{end}" for end in (suffix, "txt", "csv")]
    assert pd.read_csv(files[2]).to_dict("list") == {
        "panel": ["a panel"] * 2, "curve": ["a line"] * 2, "x": [0.0, 1.0], "y": [0.0, 1.0]
    }  # fmt: skip
    assert files[0].read_bytes().startswith(magic)
    assert files[1].read_text().splitlines() == ["a title", "a setting", "a panel", "", "a source"]


def test_rows_are_written_without_the_columns_of_figures(tmp_path):
    *_, table = write_figures([replace(FIGURE, rows=ROWS)], tmp_path, ["svg"])
    assert table.read_text().splitlines() == ["point,details", 'one,"{""b"": 1}"']


def test_figures_of_a_folder_have_a_caption_and_rows_each(tmp_path):
    figures = [replace(FIGURE, rows=ROWS), replace(FIGURE, stem="theory-1.5")]
    files = write_figures(figures, tmp_path / "new", ["svg", "pdf"])
    names = ["some-figure.svg", "some-figure.pdf", "some-figure.txt", "some-figure.csv"]
    assert [path.name for path in files] == [*names, *(f"theory-1.5.{end}" for end in ("svg", "pdf", "txt", "csv"))]
    assert all(path.stat().st_size for path in files)


def test_a_bad_path_is_the_users_to_mend(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file cannot be written \(File exists\): give another folder with --out"):
        write_figures([FIGURE], tmp_path / "file", ["png"])
