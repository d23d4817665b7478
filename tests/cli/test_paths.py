"""One rule for paths and --out in all commands: which rows a folder means, and where files go."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import on_a_cpu, output, refused, run
from synthetic import row, write

# Every command that reads rows, with "{}" where its folder of rows stands.
READERS = {
    "claims": ["claims", "{}"],
    "compare A": ["compare", "{}", "good"],
    "compare B": ["compare", "good", "{}"],
    "compare --in": ["compare", "tfla_sig_xl", "sdpa", "--in", "{}"],
    "merge": ["rows", "merge", "{}", "--into", "into"],
    "pack": ["rows", "pack", "{}"],
    "plot": ["plot", "{}", "--what", "roofline"],
    "report": ["report", "{}"],
    "sweep": ["sweep", "--device", "cpu", "--impl", "reference_sig", "--dry-run", "--tuned-from", "{}"],
    "theory": ["theory", "fig17", "--gate", "sig", "--pass", "fw", "--overlay", "{}"],
}
SIZES = {"heads": 8, "d_qk": 256, "d_hv": 512, "seq_len": 8192, "batch": 8, "gate": "sig", "package": "tflabench"}


def rows(*sizes: int) -> list:
    theory = {"model_flops": 4e11, "model_bytes": 5e9}
    ours = [row("tfla_sig_xl", float(L), chunk_size=L, **SIZES, **theory) for L in sizes]
    return [*ours, *(row("sdpa", 2.0 * L, chunk_size=L, **SIZES, **theory) for L in sizes)]


def called(command: list[str], folder: str) -> list[str]:
    return [word.format(folder) for word in command]


@pytest.fixture(autouse=True)
def _machine(tmp_path, monkeypatch):
    on_a_cpu(tmp_path, monkeypatch)


@pytest.mark.parametrize("command", READERS.values(), ids=READERS)
def test_a_path_without_rows_is_one_line_and_2(command):
    write(Path("good"), rows(64))
    Path("a_file").write_text("")
    Path("nothing").mkdir()
    Path("empty/below").mkdir(parents=True)
    Path("empty/below/journal.jsonl").write_text("")
    for folder, reason in {
        "missing": "does not exist: give a results folder",
        "a_file": "is a file: give a results folder",
        "nothing": "holds no results",
        "empty": "holds no rows yet",
    }.items():
        refused(called(command, folder), f"{folder} {reason}")


@pytest.mark.parametrize("command", READERS.values(), ids=READERS)
def test_a_path_is_a_results_folder_or_one_above_several(command):
    write(Path("good"), rows(64))
    write(Path("above/one"), rows(64, 128))
    write(Path("above/below/other"), rows(256, 512))
    done = run(*called(command, "above"))
    # With the second implementation twice as slow, `compare --in` ends with 1: it found a regression.
    assert done.exit_code == (1 if "--in" in command else 0), done.output


def test_plots_of_several_folders_lie_beside_the_rows_or_below_out():
    for name in ("one", "other"):
        write(Path("above", name), rows(64))
    plot = ["plot", "above", "--what", "roofline", "--format", "svg"]
    files = "roofline-bfloat16.svg, .txt, .csv"
    assert output(*plot).splitlines() == [f"above/{folder}/figures/{files}" for folder in ("one", "other")]
    assert output(*plot, "--out", "figures").splitlines() == [
        f"figures/{folder}/{files}" for folder in ("one", "other")
    ]


# Commands that write one file -> what it is called in a folder.
ONE_FILE = {
    ("report", "rows"): "report.html",
    ("roofline", "--gpu", "H200"): "roofline.png",
}
SEVERAL = [
    ("plot", "rows", "--what", "roofline", "--format", "svg"),
    ("theory", "fig17", "--gate", "sig", "--pass", "fw"),
    ("transfer", "--figure", "3", "--seq-len", "4", "--d-qk", "4", "--d-hv", "4"),
]


@pytest.mark.parametrize(("command", "name"), ONE_FILE.items())
def test_out_is_a_file_or_a_folder_for_the_usual_one(command, name):
    write(Path("rows"), rows(64))
    Path("there").mkdir()
    mine = f"new/folder/mine{Path(name).suffix}"
    for out, written in ((mine, mine), ("there", f"there/{name}")):
        assert written in run(*command, "--out", out).output
        assert Path(written).is_file()


@pytest.mark.parametrize("command", SEVERAL, ids=lambda command: command[0])
def test_out_of_several_files_is_a_folder(command):
    write(Path("rows"), rows(64))
    output(*command, "--out", "new/folder")
    assert any(Path("new/folder").iterdir())
    Path("a_file").write_text("")
    refused([*command, "--out", "a_file"], "--out is a_file, which cannot be written into: it is a file")
