"""What a dry run says of the folder that rows go to, and what a sweep does about rows that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from commands import document, on_a_cpu, output, refused, run

from tflabench import figures
from tflabench.problem import InputError

SMALL = ("sweep", "--device", "cpu", "-a", "seq_len=64", "-a", "d_qk=16", "-a", "d_hv=16", "--pass", "fw")


@pytest.fixture(autouse=True)
def _machine(tmp_path, monkeypatch):
    on_a_cpu(tmp_path, monkeypatch)


def test_it_says_what_its_folder_has_already():
    part = ["sweep", "--device", "cpu", "-a", "d_qk=16", "-a", "d_hv=16", "--pass", "fw", "--impl", "reference_sig"]
    part += ["--out", "rows"]
    both = [*part, "-a", "seq_len=64,128"]
    whole = len(document(*both, "--dry-run")["points"])
    output(*part, "-a", "seq_len=64", "--no-plots")
    assert 0 < document(*both, "--dry-run")["points_left"] < whole
    output(*both, "--no-plots")
    assert document(*both, "--dry-run")["points_left"] == 0
    assert document(*both, "--dry-run", "--no-resume")["points_left"] == whole


def test_comparisons_can_be_told_apart():
    lines = output("sweep", "--preset", "gates", "--dry-run", "--gpu", "H100").splitlines()
    assert {"weak", "usual", "closing"} <= {word for line in lines for word in line.split()}
    head = output("sweep", "--preset", "gdn", "--dry-run", "--gpu", "H100").partition("\n")[0]
    assert "heads_qk" in head
    assert "gates" not in head, "it is the same in all"


def test_no_point_takes_longer_than_its_timeout():
    words = ["sweep", "--dry-run", "--gpu", "H100"]
    long, short = (document(*words, "--timeout", seconds) for seconds in ("300", "2"))
    assert max(point["seconds"] for point in long["points"]) > 2
    assert max(point["seconds"] for point in short["points"]) == 2
    assert short["seconds"] < long["seconds"]


def test_what_was_measured_is_printed_where_no_figure_can_be_written(tmp_path, monkeypatch):
    def full(folder: Path) -> None:
        raise InputError(f"{folder}/figures cannot be written (No space left on device): give another folder")

    monkeypatch.setattr(figures, "draw_all", full)
    done = run(*SMALL, "--impl", "reference_sig", "--out", str(tmp_path / "rows"))
    assert done.exit_code == 2
    assert re.search(r"(\d+) of \1 points measured", done.stdout)
    assert "figures cannot be written (No space left on device)" in done.stderr


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('axes = { seq_len = "64", tokens = "128", batch = "7" }\n[[group]]\nfamily = ["mlstm"]', "are both set"),
        (
            'protocol = { gpu = "short" }\n[[group]]\nfamily = ["mlstm"]',
            "= 'gpu': Input should be 'cuda' or 'cpu'",
        ),
        ('[[group]]\nfamily = ["nope"]', "group 1 has family.0 = 'nope': Input should be 'mlstm', "),
    ],
)
def test_what_a_preset_says_for_nothing_is_refused(text, reason):
    Path("mine.toml").write_text(f'title = "mine"\n{text}\n')
    refused(["sweep", "--dry-run", "--device", "cpu", "--preset", "mine.toml"], reason)
