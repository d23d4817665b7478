"""One rule for paths and --out in all commands: which rows a folder means, and where files go."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic import row, write
from typer.testing import CliRunner

from tflabench.cli.main import app

runner = CliRunner()
# Every command that reads rows, with "{}" where its folder of rows stands.
READERS = {
    "claims": ["claims", "{}"],
    "compare A": ["compare", "{}", "{good}"],
    "compare B": ["compare", "{good}", "{}"],
    "compare --in": ["compare", "tfla_sig_xl", "sdpa", "--in", "{}"],
    "merge": ["rows", "merge", "{}", "--into", "into"],
    "pack": ["rows", "pack", "{}"],
    "plot": ["plot", "{}"],
    "report": ["report", "{}"],
    "roofline": ["roofline", "--gpu", "H200", "--overlay", "{}"],
    "sweep": ["sweep", "--device", "cpu", "--impl", "reference_sig", "--dry-run", "--tuned-from", "{}"],
    "theory": ["theory", "fig17", "--gate", "sig", "--pass", "fw", "--overlay", "{}"],
}
SIZES = {"heads": 8, "d_qk": 256, "d_hv": 512, "seq_len": 8192, "batch": 8, "gate": "sig", "package": "tflabench"}


def rows(*sizes: int) -> list:
    theory = {"model_flops": 4e11, "model_bytes": 5e9}
    ours = [row("tfla_sig_xl", float(L), chunk_size=L, **SIZES, **theory) for L in sizes]
    return [*ours, *(row("sdpa", 2.0 * L, chunk_size=L, **SIZES, **theory) for L in sizes)]


def run(command: list[str], folder: Path, good: Path):
    return runner.invoke(app, [str(folder) if word == "{}" else word.format(good=good) for word in command])


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("missing", "does not exist: give a results folder written by `tflabench sweep`, or a folder above several"),
        ("file", "is a file: give a results folder written by `tflabench sweep`, or a folder above several"),
        ("nothing", "holds no results (no journal.jsonl or rows.parquet in it or below): give a results folder"),
        ("no rows", "holds no rows yet (its journal.jsonl is empty): give a results folder written by"),
    ],
)
@pytest.mark.parametrize("command", READERS.values(), ids=READERS)
def test_a_path_without_rows_is_one_line_and_2(tmp_path, command, state, says):
    folder = tmp_path / "folder"
    if state == "file":
        folder.write_text("")
    elif state != "missing":
        folder.mkdir()
    if state == "no rows":
        (folder / "below").mkdir()
        (folder / "below" / "journal.jsonl").write_text("")
    done = run(command, folder, write(tmp_path / "good", rows(64)))
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith(f"tflabench: {folder} {says}")


@pytest.mark.parametrize("command", READERS.values(), ids=READERS)
def test_a_path_is_a_results_folder_or_one_above_several(tmp_path, command):
    write(tmp_path / "above" / "one", rows(64, 128))
    write(tmp_path / "above" / "below" / "other", rows(256, 512))
    done = run(command, tmp_path / "above", tmp_path / "above")
    # With the second implementation twice as slow, `compare --in` ends with 1: it found a regression.
    assert done.exit_code == (1 if "--in" in command else 0), done.output


def test_plots_of_several_folders_lie_beside_the_rows_or_below_out(tmp_path):
    one, other = write(tmp_path / "above" / "one", rows(64)), write(tmp_path / "above" / "other", rows(64))
    plot = ["plot", str(tmp_path / "above"), "--what", "roofline", "--format", "svg"]
    assert runner.invoke(app, plot).stdout.splitlines() == [
        str(folder / "figures" / f"roofline-bfloat16.{suffix}")
        for folder in (one, other)
        for suffix in ("svg", "txt", "csv")
    ]
    found = runner.invoke(app, [*plot, "--out", "figures"]).stdout.splitlines()
    assert found[::3] == ["figures/one/roofline-bfloat16.svg", "figures/other/roofline-bfloat16.svg"]


# Commands that write one file: the command, and what it calls its file in a folder.
ONE_FILE = {
    "compare": (["compare", "{}", "{}"], "compare.png"),
    "report": (["report", "{}"], "report.html"),
    "roofline": (["roofline", "--gpu", "H200"], "roofline.png"),
}
# Commands that write several files.
SEVERAL = {
    "plot": ["plot", "{}", "--what", "roofline", "--format", "svg"],
    "theory": ["theory", "fig17", "--gate", "sig", "--pass", "fw"],
    "transfer": ["transfer", "--figure", "3", "--seq-len", "4", "--d-qk", "4", "--d-hv", "4", "--step", "5"],
}


@pytest.mark.parametrize(("command", "name"), ONE_FILE.values(), ids=ONE_FILE)
def test_out_is_a_file_or_a_folder_for_the_usual_one(tmp_path, command, name):
    folder = write(tmp_path / "rows", rows(64))
    filled = [word.format(folder) for word in command]
    suffix = name.rpartition(".")[2]
    (tmp_path / "there").mkdir()
    for out, written in ((f"new/folder/mine.{suffix}", f"new/folder/mine.{suffix}"), ("there", f"there/{name}")):
        done = runner.invoke(app, [*filled, "--out", out])
        assert done.exit_code == 0, done.output
        assert (tmp_path / written).is_file()
        assert written in done.output


@pytest.mark.parametrize("command", SEVERAL.values(), ids=SEVERAL)
def test_out_of_several_files_is_a_folder(tmp_path, command):
    folder = write(tmp_path / "rows", rows(64))
    filled = [word.format(folder) for word in command]
    done = runner.invoke(app, [*filled, "--out", "new/folder"])
    assert done.exit_code == 0, done.output
    assert any((tmp_path / "new" / "folder").iterdir())
    (tmp_path / "file").write_text("")
    done = runner.invoke(app, [*filled, "--out", "file"])
    assert done.exit_code == 2
    assert "--out is file, which cannot be written into: it is a file, and this command needs a folder" in done.stderr


@pytest.mark.parametrize(
    ("command", "says"),
    [(command, "FILE") for command in (*ONE_FILE, "profile")]
    + [(command, "DIR") for command in (*SEVERAL, "sweep", "verify", "reproduce")],
)
def test_out_is_explained_alike_everywhere(command, says):
    from typer.main import get_command

    (out,) = [each for each in get_command(app).commands[command].params if each.name == "out"]  # type: ignore[attr-defined]
    begins = "Write into this folder, which is made where it is missing." if says == "DIR" else "Write this file"
    assert (out.metavar, out.help[: len(begins)]) == (says, begins)
