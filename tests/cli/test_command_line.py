"""What holds for the whole command line: its help, its names, and what it says of input that makes no sense."""

from __future__ import annotations

import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from synthetic import row, write
from typer.main import get_command
from typer.testing import CliRunner, Result

import tflabench
from tflabench import figures
from tflabench.bench import machine, verifier
from tflabench.bench.machine import Machine
from tflabench.bench.station import Station
from tflabench.cli.common.app import COMMANDS
from tflabench.cli.common.console import print_json
from tflabench.cli.main import app
from tflabench.conclusions.markdown import write_page
from tflabench.implementations import registry
from tflabench.problem import InputError
from tflabench.theory import hardware

COMMAND = [sys.executable, "-m", "tflabench"]
TREE: dict[str, object] = {}  # every command by the words that call it


def _collect(group: object, words: str = "") -> None:
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        TREE[f"{words}{name}"] = command
        if hasattr(command, "commands"):
            _collect(command, f"{name} ")


_collect(get_command(app))


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """A machine without a GPU, with caches and a working directory of its own."""
    for name in ("XDG_CACHE_HOME", "TFLABENCH_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "caches" / name))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "detect", lambda device: Machine("cpu", "Some CPU, 2 cores", 8 << 30))


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "80"}, prog_name="tflabench")


def refused(words: list[str], said: str) -> None:
    done = run(*words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr


class TestHelp:
    def test_every_command_stands_below_its_heading_in_a_short_line(self):
        lines = run("--help").stdout.splitlines()
        assert len(lines) <= 36
        assert not re.search(r"[│╭╰─]", "".join(lines))
        places = [lines.index(f"{heading}:") for heading in COMMANDS]
        assert places == sorted(places)
        for place, below in zip(places, COMMANDS.values(), strict=True):
            own = lines[place + 1 : place + 1 + len(below)]
            assert [line.split()[0] for line in own] == list(below)
            assert all(len(line) <= 60 for line in own)

    def test_the_table_of_commands_is_all_that_there_is(self):
        assert [name for name in TREE if " " not in name] == [name for below in COMMANDS.values() for name in below]
        below = {f"rows {name}" for name in ("merge", "pack")}
        assert {name for name in TREE if " " in name} == {*below, "cache clear"}

    def test_it_imports_nothing_heavy_and_takes_little_of_a_core(self):
        heavy = "torch pandas numpy matplotlib rich pydantic tflabench.implementations.registry"
        code = (
            "import sys; from tflabench.cli.main import app; app(['--help'], standalone_mode=False); "
            f"print([name for name in '{heavy}'.split() if name in sys.modules], file=sys.stderr)"
        )
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.stderr.strip() == "[]"
        assert after.ru_utime - before.ru_utime < 0.8  # twice what is asked for, for machines that are busy

    @pytest.mark.parametrize("words", list(TREE))
    def test_each_is_readable_at_80_columns_with_a_sentence_an_option(self, words):
        done = run(*words.split(), "-h")
        assert done.exit_code == 0
        assert all(len(line) <= 80 for line in done.stdout.splitlines())
        assert not re.search(r"[│╭╰─]", done.stdout)
        for param in TREE[words].params:  # type: ignore[attr-defined]
            told = getattr(param, "help", "") or ""
            if param.name not in ("help", "directory", "directories", "a", "sources"):
                assert told.endswith("."), param.name
                assert not re.search(r"[.!?] [A-Z]", told), param.name

    def test_options_stand_in_panels(self):
        text = run("sweep", "-h").stdout
        headings = [line for line in text.splitlines() if re.fullmatch(r"\w.*:", line)]
        assert headings == ["What to measure:", "How to measure:", "Output:", "Options:"]

    def test_one_name_means_one_thing_everywhere(self):
        for words, command in TREE.items():
            names = [name for param in command.params for name in param.opts]  # type: ignore[attr-defined]
            assert not {"--plot", "--budget", "--figure-file", "--device-name"} & set(names), words

    def test_version_and_completion(self):
        assert run("--version").stdout == f"tflabench {tflabench.__version__}\n"
        done = subprocess.run(
            COMMAND,
            capture_output=True,
            text=True,
            env=os.environ
            | {"_TFLABENCH_COMPLETE": "complete_bash", "COMP_WORDS": "tflabench optim", "COMP_CWORD": "1"},
        )
        assert done.stdout.split() == ["optimal-chunk"]

    @pytest.mark.parametrize(
        ("words", "offered"),
        [
            ("sweep --preset paper-fig4", ["paper-fig4", "paper-fig4-matched"]),
            ("verify --preset min", ["mine.toml"]),
            ("sweep --gpu GH200-9", ["GH200-96GB"]),
            ("advise --gpu L", ["L40S"]),
            ("optimal-chunk --gpu B200", ["B200", "B200-SXM"]),
            ("roofline --gpu A100,L", ["A100,L40S"]),
            ("sweep --preset nothing-like-it", []),
        ],
    )
    def test_a_shell_completes_presets_and_gpus(self, tmp_path, words, offered):
        (tmp_path / "mine.toml").touch()
        place = str(len(words.split()))
        asked = {"_TFLABENCH_COMPLETE": "complete_bash", "COMP_WORDS": f"tflabench {words}", "COMP_CWORD": place}
        found = CliRunner().invoke(app, [], env=asked, prog_name="tflabench").stdout.split()
        assert found == offered
        for name in (part for one in found if "--gpu" in words for part in one.split(",")):
            assert hardware.find(name).name


class TestOldNames:
    @pytest.mark.parametrize("name", ["merge", "recount", "migrate"])
    def test_a_command_that_moved_says_where(self, name):
        refused([name, "results"], f"`tflabench {name}` is now `tflabench rows {name}`")

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["advise", "--plot", "a.png"], "`tflabench advise --plot` is now --out"),
            (["optimal-chunk", "--plot=a.png"], "`tflabench optimal-chunk --plot` is now --out"),
            (["verify", "--budget", "3"], "`tflabench verify --budget` is now --verify-seconds"),
            (["compare", "a", "b", "--no-plot"], "without --out nothing is drawn"),
        ],
    )
    def test_an_option_that_was_renamed_says_how(self, words, said):
        refused(words, said)


class TestNonsense:
    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["optimal-chunk", "--gpu", ""], "--gpu is '': it must not be empty"),
            (["roofline", "--gpu="], "--gpu is '': it must not be empty"),
            (["sweep", "--impl", " "], "--impl is ' ': it must not be empty"),
            (["sweep", "--timeout", "nan"], "--timeout"),
            (["sweep", "--timeout", "inf"], "--timeout is inf: it must be a number"),
            (["sweep", "--timeout", "1e21"], "--timeout is 1e+21: it must be at most 1e+09"),
            (["sweep", "--stop-after=-0.0"], "--stop-after is -0: it must be a number"),
            (["sweep", "--tune-seconds", "1e21"], "--tune-seconds is '1e21'"),
            (["sweep", "--tune-seconds=-0"], "--tune-seconds is '-0'"),
            (["sweep", "--verify-seconds", "inf"], "--verify-seconds is inf"),
            (["optimal-chunk", "--d-hv", "100000000"], "d_hv is 100000000: it must be at most 65536"),
            (["advise", "--d-hv", "100000000"], "d_hv is 100000000: it must be at most 65536"),
            (["transfer", "--d-hv", "100000000"], "d_hv is 100000000: it must be at most 8192"),
            (["transfer", "--eps", "1e21"], "eps is '1e21': it must be at most 1"),
            (["transfer", "--step", "nan"], "--step is nan"),
            (["optimal-chunk", "--seq-len", str(10**21)], "--seq-len is 1e+21: it must be at most"),
            (["optimal-chunk", "--peak-tflops", "1e-300", "--gpu", "H100"], "--peak-tflops is 1e-300: it must lie"),
            (["optimal-chunk", "--bandwidth-tbs", "1e8", "--gpu", "H100"], "--bandwidth-tbs is 1e+08: it must lie"),
            (["optimal-chunk", "--causal-factor", "nan"], "--causal-factor is nan"),
            (
                ["optimal-chunk", "--memory-budget", "9999999999GiB"],
                "memory_budget is '9999999999GiB': it must be at most 1024 PiB",
            ),
            (["advise", "--tokens", str(10**21)], "--tokens is 1e+21: it must be at most"),
            (["compare", "a", "b", "--threshold=-0"], "--threshold is '-0'"),
            (["compare", "a", "b", "--threshold", "1e21%"], "--threshold is '1e21%'"),
            (
                ["sweep", "-a", "seq_len=1", "-a", "seq_len=2"],
                "axis seq_len is given twice: give all its values at once",
            ),
            (["sweep", "-a", "pass=fw", "--pass", "fwbw"], "axis pass is given twice"),
            (["sweep", "-a", "d_hv=100000000"], "d_hv is 100000000: it must be at most"),
            (["list", "--gpu", "H100"], "No such option: --gpu"),
            (["cache", "clear", "kernel"], "WHAT is 'kernel': it must be one of kernels, tuning, ceilings"),
        ],
    )
    def test_it_is_refused_in_a_line(self, words, said):
        refused(words, said)

    def test_a_pattern_that_the_shell_made_file_names_of(self, tmp_path):
        (tmp_path / "tfla_notes.txt").touch()
        (tmp_path / "tfla_plan.txt").touch()
        for words in (["tfla_notes.txt", "tfla_plan.txt"], ["tfla_notes.txt"]):
            refused(["sweep", "--impl", *words], "the name of a file here, as a shell makes it of a pattern: quote")
        (tmp_path / "sdpa").touch()
        assert run("sweep", "--impl", "sdpa", "-a", "seq_len=64", "--dry-run").exit_code == 0  # it is one of ours

    def test_many_names_with_commas_are_longer_than_a_file_name_may_be(self):
        names = ",".join(["tfla_sig_xl", "tfla_exp_xl"] * 200)
        assert run("sweep", "--impl", names, "-a", "seq_len=64", "--dry-run").exit_code == 0


class TestOptimalChunk:
    WORDS = ("optimal-chunk", "--gpu", "H100", "--d-qk", "256", "--d-hv", "512")

    def test_it_answers_first_and_shortly(self):
        found = json.loads(run(*self.WORDS, "--json").stdout)
        text = run(*self.WORDS).stdout
        assert len(text.splitlines()) <= 30
        answer, rest = " ".join(text.split()).split(". mLSTMsig", 1)
        assert answer.startswith(f"L = {found['recommended']} takes the least time in theory on H100 SXM: ")
        assert answer.endswith(f"our hopper_sig would run with L = {found['kernel']['chunk_size']}")
        assert "eq. 121" not in rest

    def test_the_longest_table_is_short_too(self):
        words = ["--seq-len", str(2**24), "--chunk-size", "192", "--batch", "1"]
        assert len(run(*self.WORDS, *words).stdout.splitlines()) <= 30
        assert len(run(*self.WORDS, *words, "--details").stdout.splitlines()) > 30

    @pytest.mark.parametrize(
        ("words", "kernel"),
        [
            (["--gpu", "A100"], "tfla_sig_xl"),
            (["--gpu", "GH200", "--gate", "exp"], "hopper_exp"),
            (["--gpu", "V100"], None),
            (["--gpu", "H100", "--d-qk", "320"], "tfla_sig_xl"),
        ],
    )
    def test_the_kernel_is_one_that_runs_there(self, words, kernel):
        assert json.loads(run("optimal-chunk", *words, "--json").stdout)["kernel"]["implementation"] == kernel


class TestGh200:
    @pytest.mark.parametrize(
        ("driver", "name", "tbs", "memory"),
        [
            ("NVIDIA GH200 480GB", "GH200 96GB", 4.0, 96e9),
            ("NVIDIA GH200 144G HBM3e", "GH200 144GB", 4.9, 144e9),
        ],
    )
    def test_its_driver_names_it(self, driver, name, tbs, memory):
        gpu = hardware.from_device_name(driver)
        assert gpu is not None
        assert (gpu.name, gpu.memory_bytes, gpu.capability) == (name, memory, hardware.HOPPER)
        assert gpu.ceilings.bytes_per_s == pytest.approx(tbs * 1e12)
        assert gpu.ceilings.flops_per_s == pytest.approx(989.5e12)
        assert hardware.find("GH200").name == "GH200 96GB"


class TestAdvise:
    def test_on_a_cpu_it_measures_nothing_that_takes_many_minutes(self, monkeypatch):
        monkeypatch.setattr(Station, "_open", lambda station: pytest.fail("a worker starts, or measures ceilings"))
        refused(["advise", "--measure"], "give a smaller problem, such as --dtype float32 --batch 1")
        roomy = Machine("cpu", "Some CPU, 2 cores", 1 << 42)
        monkeypatch.setattr(machine, "detect", lambda device: roomy)
        refused(["advise", "--measure"], "min or more (if it has 1 TFLOP/s; tflabench calibrate measures that)")
        hardware.store_ceilings(roomy.name, "bfloat16", hardware.Ceilings(1e11, 1e10, "measured", "test"))
        refused(["advise", "--measure"], "min or more and 7.01 GiB of 4.1e+03 GiB on this CPU")


class TestRoofline:
    def test_overlay_has_the_rows_of_the_pass_and_dtype(self, tmp_path):
        theory = {"model_flops": 4e11, "model_bytes": 5e9, "device": "NVIDIA H200"}
        rows = [
            row(ms=2.0, pass_="fw", **theory),
            row("sdpa", ms=4.0, pass_="fwbw", **theory),
            row("reference_sig", ms=9.0, pass_="fw", dtype="float32", **theory),
        ]
        folder = str(write(tmp_path / "rows", rows))
        (tmp_path / "rows" / "rows.parquet").unlink(missing_ok=True)  # the journal is what counts
        for words, name in (
            ("--pass fw", "tfla_sig_xl"),
            ("--pass fwbw", "sdpa"),
            ("--dtype float32 --peak-tflops 60 --bandwidth-tbs 3", "reference_sig"),
        ):
            done = run("roofline", "--overlay", folder, *words.split(), "--json")
            assert [point["label"] for point in json.loads(done.stdout)["measured"]] == [name]
        only = str(write(tmp_path / "only", rows[:1]))
        wanted = ["roofline", "--overlay", only, "--pass", "fwbw"]
        refused(wanted, "has no measured rows of --pass fwbw --dtype bfloat16; it")


class TestCompare:
    def test_it_draws_only_when_asked(self, tmp_path):
        folders = [str(write(tmp_path / name, [row(), row("sdpa")])) for name in ("a", "b")]
        before = set(tmp_path.iterdir())
        assert run("compare", *folders).exit_code == 0
        assert set(tmp_path.iterdir()) == before
        assert run("compare", *folders, "--out", "ratios.png").exit_code == 0
        assert {path.suffix for path in set(tmp_path.iterdir()) - before} >= {".png"}


class TestDryRun:
    def test_it_is_short_in_units_that_people_read(self):
        words = ["sweep", "--preset", "paper-fig5", "--dry-run", "--gpu", "H100"]
        lines = run(*words).stdout.splitlines()
        assert len(lines) <= 40
        assert all(len(line.rstrip()) <= 80 for line in lines if line[:1].isdigit() and "comparisons" not in line)
        assert any("GiB" in line for line in lines)
        assert not re.search(r"\d{8}", "".join(lines))
        points = json.loads(run(*words, "--json").stdout)["points"]
        assert len(run(*words, "--full").stdout.splitlines()) > len(points)

    def test_a_long_selection_is_cut(self):
        done = run("sweep", "--dry-run", "--gpu", "H100", "-a", "batch=1:60:+1")
        assert len(done.stdout.splitlines()) <= 40
        assert "more comparisons" in done.stdout

    def test_it_says_what_its_folder_has_already(self, tmp_path):
        part = ["sweep", "--preset", "quick", "--device", "cpu", "-a", "seq_len=256", "-a", "pass=fw"]
        part += ["--impl", "reference_sig,reference_exp", "--out", str(tmp_path / "rows")]
        assert "points_left" in json.loads(run(*part, "--dry-run", "--json").stdout)
        assert " of them" not in run(*part, "--dry-run").stdout
        run(*part, "-a", "d_qk=32", "--no-plots")
        told = json.loads(run(*part, "--dry-run", "--json").stdout)
        assert 0 < told["points_left"] == len(told["points"]) - 2
        assert 0 < told["seconds_left"] < told["seconds"] or told["seconds"] <= 1
        assert "rows has 2 of them: about" in " ".join(run(*part, "--dry-run").stdout.split())
        run(*part, "--no-plots")
        assert "nothing is left" in " ".join(run(*part, "--dry-run").stdout.split())
        assert " of them" not in run(*part, "--dry-run", "--no-resume").stdout

    def test_rows_of_older_kernels_are_not_what_it_has_already(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        part = ["sweep", "--device", "cpu", "-a", "seq_len=256", "-a", "pass=fw", "--impl", "reference_sig"]
        usual = Path(json.loads(run(*part, "--dry-run", "--json").stdout)["folder"])
        run(*part, "--no-plots")
        assert json.loads(run(*part, "--dry-run", "--json").stdout)["points_left"] == 0
        (journal,) = usual.glob("journal.jsonl*")
        text = journal.read_text()
        for path in usual.iterdir():
            path.unlink()
        journal.write_text(re.sub('"kernel_version":[0-9]+', '"kernel_version":0', text))
        done = run(*part, "--dry-run", "--json")
        told = json.loads(done.stdout)
        assert told["points_left"] == len(told["points"]) > 0
        assert told["folder"] == f"{usual}-kernels-{registry.kernel_versions()}"
        assert "holds rows of older versions of reference_sig" in " ".join(done.stderr.split())
        given = run(*part, "--dry-run", "--out", str(usual))
        assert (given.exit_code, "give another --out" in " ".join(given.stderr.split())) == (2, True)

    def test_no_point_takes_longer_than_its_timeout(self):
        words = ["sweep", "--dry-run", "--gpu", "H100", "--json"]
        long, short = (json.loads(run(*words, "--timeout", seconds).stdout) for seconds in ("300", "2"))
        assert max(point["seconds"] for point in long["points"]) > 2
        assert max(point["seconds"] for point in short["points"]) == 2
        assert short["seconds"] < long["seconds"]


class TestFigures:
    def test_what_was_measured_is_printed_where_no_figure_can_be_written(self, tmp_path, monkeypatch):
        def full(folder: Path) -> None:
            raise InputError(f"{folder}/figures cannot be written (No space left on device): give another folder")

        monkeypatch.setattr(figures, "draw_all", full)
        words = ["sweep", "--preset", "quick", "--device", "cpu", "-a", "seq_len=256", "-a", "d_qk=32", "--pass", "fw"]
        done = run(*words, "--impl", "reference_sig", "--out", str(tmp_path / "rows"))
        assert done.exit_code == 2
        assert re.search(r"(\d+) of \1 points measured", done.stdout)
        assert "figures cannot be written (No space left on device)" in done.stderr


class TestList:
    def test_it_says_what_runs_here_and_what_presets_and_axes_there_are(self):
        done = run("list")
        assert done.exit_code == 0
        lines = done.stdout.splitlines()
        told = {line.split()[0]: line for line in lines if re.match("  [a-z]", line)}
        assert told["hopper_sig"].split()[1:] == "triton, GPU 9.x not here".split()
        assert told["reference_sig"].split()[1:] == "torch runs here".split()
        for heading in ("Implementations (--impl)", "Presets (--preset)"):
            assert heading in lines
        assert any(line.startswith("  paper-fig4 ") for line in lines)
        assert any(line.startswith("  seq_len ") for line in lines)
        assert max(len(line) for line in lines) <= 80

    def test_json_has_the_same(self, monkeypatch):
        monkeypatch.setattr(machine, "detect", lambda device: Machine("cuda", "NVIDIA A100-SXM4-80GB", 80 << 30))
        found = {one["name"]: one for one in json.loads(run("list", "--json").stdout)["implementations"]}
        assert found["hopper_sig"]["refused"] == "needs a GPU of compute capability 9.x, not 8.0"
        assert found["tfla_sig_xl"]["runs_here"]


class TestCache:
    def test_it_shows_sizes_and_clears_what_is_named(self):
        ceilings = hardware.Ceilings(1e11, 1e10, "measured", "test")
        file = hardware.store_ceilings("Some CPU, 2 cores", "float32", ceilings)
        kernel = Path(os.environ["TRITON_CACHE_DIR"]) / "one" / "kernel.cubin"
        kernel.parent.mkdir(parents=True)
        kernel.write_bytes(bytes(3 << 20))
        shown = json.loads(run("cache", "--json").stdout)
        assert (shown["kernels"]["bytes"], shown["kernels"]["files"]) == (3 << 20, 1)
        assert shown["ceilings"]["path"] == str(file)
        assert "3.0 MiB" in run("cache").stdout
        done = run("cache", "clear", "kernels")
        assert done.stdout == f"kernels: removed 1 files, 3.0 MiB, from {os.environ['TRITON_CACHE_DIR']}\n"
        assert not kernel.exists()
        assert file.exists()
        assert run("cache", "clear").exit_code == 0
        assert not file.exists()

    def test_without_caches_there_is_nothing_to_clear(self):
        assert run("cache", "clear").stdout.count("removed 0 files") == 3


@pytest.mark.parametrize("words", [["gpus"], ["--help"], ["advise", "--gpu", "H100", "--json"]])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_one_line_and_code_1(words):
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, *words], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == "tflabench: cannot write: No space left on device\n"


@pytest.mark.parametrize("words", [["gpus"], ["advise", "--gpu", "H100", "--json"]])
def test_a_closed_pipe_is_one_line_and_code_1(words):
    read, write_end = os.pipe()
    os.close(read)
    done = subprocess.run([*COMMAND, *words], stdout=write_end, stderr=subprocess.PIPE, text=True)
    os.close(write_end)
    assert done.returncode == 1
    assert done.stderr == "tflabench: cannot write: Broken pipe\n"


@pytest.mark.parametrize("module", ["tflabench.cli.main", "typer", "tflabench.bench.machine"])
def test_an_interrupt_while_it_imports_is_code_130_without_a_traceback(tmp_path, module):
    """A module that stops the process where the import of another begins."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    done = subprocess.run(
        [*COMMAND, "gpus"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert done.returncode == 130, done.stderr
    assert done.stderr == ""


def test_an_interrupt_at_any_time_prints_no_traceback():
    process = subprocess.Popen(
        [*COMMAND, "advise", "--gpu", "H100", "--tokens", "4194304"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    time.sleep(0.7)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert "Traceback" not in stderr
    assert process.returncode in (0, 130, -signal.SIGINT)  # the last one before Python has begun


class TestVerify:
    PART = ("verify", "--preset", "quick", "--device", "cpu", "--impl", "reference_sig", "-a", "seq_len=64,128,256")

    def test_it_keeps_what_a_sweep_said_of_its_runs(self, tmp_path):
        folder = str(tmp_path / "rows")
        small = ["-a", "seq_len=64", "-a", "d_qk=16", "-a", "d_hv=16", "--device", "cpu", "--impl", "reference_sig"]
        assert run("sweep", *small, "--no-plots", "--out", folder).exit_code == 0
        before = json.loads((tmp_path / "rows" / "environment.json").read_text())["runs"]
        assert run("verify", *small, "--out", folder).exit_code == 0
        after = json.loads((tmp_path / "rows" / "environment.json").read_text())["runs"]
        assert before
        assert {name: told for name, told in after.items() if name != "verify"} == before
        assert "arguments" in after["verify"]

    def test_an_environment_that_no_sweep_wrote_is_refused_before_anything_is_checked(self, tmp_path, monkeypatch):
        monkeypatch.setattr(verifier.Verifier, "verify", None)
        (tmp_path / "environment.json").write_text("[]")
        refused([*self.PART, "--out", str(tmp_path)], "is not what `tflabench sweep` writes")
        assert [path.name for path in tmp_path.iterdir()] == ["environment.json"]

    def test_interrupted_it_writes_what_it_has_checked(self, tmp_path, monkeypatch):
        real, calls = verifier.Verifier.verify, []

        def verify(self, point):
            calls.append(point)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return real(self, point)

        monkeypatch.setattr(verifier.Verifier, "verify", verify)
        done = run(*self.PART, "--out", str(tmp_path))
        assert (done.exit_code, done.stdout) == (130, "")
        assert re.search(r"Interrupted: 1 of \d+ points were checked\.", done.stderr)
        points = {line.split(",")[0] for line in (tmp_path / "errors.csv").read_text().splitlines()[1:]}
        assert points == {calls[0].id}


def test_json_has_null_where_a_number_is_none(capsys):
    print_json({"a": math.nan, "b": [1.5, math.inf, {"c": (-math.inf, 2)}]})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [1.5, None, {"c": [None, 2]}]}


@pytest.mark.parametrize("words", [("plot",), ("claims",), ("rows", "pack"), ("roofline", "--gpu", "H100", "--out")])
def test_a_path_too_long_is_one_line(words):
    refused([*words, "a" * 300], "cannot be used (File name too long): give another path")


def test_a_dry_run_takes_the_name_of_a_folder_as_it_is(tmp_path):
    done = run("sweep", "--dry-run", "--device", "cpu", "--out", str(tmp_path / "s[/]"))
    assert done.exit_code == 0, done.exception
    assert "s[/]" in "".join(done.stdout.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--format", "csv"), "--dry-run and --format csv are both given: a dry run has --json or a table"),
        (("--gpu", "H100", "--device", "cpu"), "--gpu H100 and --device cpu are both given: give one of them"),
    ],
)
def test_a_dry_run_refuses_what_it_would_not_heed(words, said):
    refused(["sweep", "--dry-run", *words], said)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            'axes = { seq_len = "64", tokens = "128", batch = "7" }',
            "are both set: each follows from the other, give one",
        ),
        ('protocol = { gpu = "short" }', "protocol has 'gpu': it must be cuda or cpu"),
        ("", "group 1 has family 'nope': it must be one of mlstm,"),
    ],
)
def test_what_a_preset_says_for_nothing_is_refused(tmp_path, line, said):
    family = '["nope"]' if not line else '["mlstm"]'
    path = tmp_path / "mine.toml"
    path.write_text(f'title = "mine"\n{line}\n[[group]]\nfamily = {family}\n')
    refused(["sweep", "--dry-run", "--device", "cpu", "--preset", str(path)], said)


def test_a_stdout_that_is_closed_or_has_few_characters_ends_in_no_traceback(tmp_path):
    closed = subprocess.run(f"{' '.join(COMMAND)} gpus >&-", shell=True, capture_output=True, text=True, check=False)
    assert (closed.returncode, closed.stderr) == (0, "")
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*COMMAND, "gpus"], env=os.environ | ascii_only, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "H100" in done.stdout


def test_a_page_is_utf_8_in_any_locale_and_never_half_written(tmp_path):
    code = (
        "import sys, pathlib; from tflabench.conclusions.markdown import write_page; "
        "write_page(pathlib.Path(sys.argv[1]), chr(8224))"
    )
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", code, str(tmp_path / "a.md")]
    subprocess.run(command, env=os.environ | ascii_only, check=True)
    assert (tmp_path / "a.md").read_bytes() == "\u2020".encode()
    assert [path.name for path in tmp_path.iterdir()] == ["a.md"]


def test_a_page_goes_through_a_link_or_a_pipe_and_leaves_it_there(tmp_path):
    (tmp_path / "page.md").write_text("old")
    (tmp_path / "link.md").symlink_to(tmp_path / "page.md")
    write_page(tmp_path / "link.md", "new")
    assert (tmp_path / "link.md").is_symlink()
    assert (tmp_path / "page.md").read_text() == "new"
    assert write_page(Path("/dev/null"), "gone").is_char_device()
