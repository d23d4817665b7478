"""The documentation holds: commands and snippets run, links lead somewhere.

Marks keep a block from being run, each an HTML comment on the line above it: `<!-- needs a GPU -->`, `<!-- slow -->`
and `<!-- needs xlstm -->`, which test_integrations.py runs. What is marked is still held to the commands and
options that there are. A sweep runs at a tiny size.
A Python block that begins with a comment such as `# my_kernel.py` is that file, for the commands of its page.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import commands
import pytest
import torch
from repository import ROOT
from typer.main import get_command
from typer.testing import Result

import tflabench
from tflabench.cli.main import app
from tflabench.implementations import registry

README = ROOT / "README.md"
GUIDES = [
    ROOT / "docs" / f"{name}.md"
    for name in (
        "getting-started",
        "use-the-kernels",
        "kernels",
        "gla-walk-through",
        "delta-rule",
        "how-it-measures",
        "several-gpus",
        "theory",
        "training",
        "add-a-kernel",
        "results",
    )
]
CLI = ROOT / "docs" / "cli.md"
WRITTEN = [README, *GUIDES, ROOT / "CONTRIBUTING.md", ROOT / "AGENTS.md"]
LINKING = [
    *WRITTEN,
    CLI,
    ROOT / "CHANGELOG.md",
    ROOT / "kernels" / "README.md",
    *(ROOT / "docs" / "decisions").rglob("*.md"),
]
TINY = "-a seq_len=32 -a head_dim=16 -a heads=1 -a chunk_size=16 --pass fw --no-plots".split()
COMMANDS: Any = get_command(app)


class Block(NamedTuple):
    """A fenced block of a page: its language, the mark above it (None without), and its text."""

    page: Path
    line: int
    language: str
    mark: str | None
    text: str


@dataclass(frozen=True)
class Command:
    """A command of a page, with the exit code and the lines of output that the page promises, in their order."""

    page: Path
    line: int
    words: tuple[str, ...]
    runs: bool
    exit_code: int
    output: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page.stem}:{self.line} {' '.join(self.words[:2])}"


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    above, start, language, inside = "", 0, "", None
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if inside is not None:
            if line.startswith("```"):
                mark = re.fullmatch(r"<!-- (.*) -->", above)
                found.append(Block(page, start, language, mark[1] if mark else None, "\n".join(inside) + "\n"))
                inside, above = None, ""
            else:
                inside.append(line)
        elif line.startswith("```"):
            start, language, inside = number, line[3:].strip(), []
        else:
            above = line
    assert inside is None, f"{page} ends within a block"
    return found


def commands_of(block: Block) -> list[Command]:
    if block.language not in ("sh", "console"):
        return []
    found: list[tuple[int, str, list[str]]] = []
    for number, line in enumerate(block.text.splitlines(), block.line + 1):
        if block.language == "console" and not line.startswith("$ "):
            found[-1][2].append(line)
        elif line.strip():
            found.append((number, line.removeprefix("$ "), []))
    commands = []
    for number, line, output in found:
        code = re.search(r"# exit code (\d+)", line)
        promised = tuple(text.strip() for text in output if text.strip() not in ("", "..."))
        words = tuple(shlex.split(line, comments=True))
        runs = block.mark is None and words[0] == "tflabench"
        commands.append(Command(block.page, number, words, runs, int(code[1]) if code else 0, promised))
    return commands


def code_in_text(page: Path) -> list[str]:
    """Return what stands between single backticks outside of blocks, on one line each."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text)]


BLOCKS = [block for page in WRITTEN for block in blocks(page)]
IN_BLOCKS = [command for block in BLOCKS for command in commands_of(block)]
IN_TEXT = [
    Command(page, 0, tuple(shlex.split(code)), runs=False, exit_code=0, output=())
    for page in WRITTEN
    for code in code_in_text(page)
    if re.match(r"(tflabench|make) [a-z]", code)
]
RUN = [command for command in IN_BLOCKS if command.runs]


# --- commands


def workplace(page: Path, folder: Path) -> Path:
    """Make a folder to run the commands of a page in: the stored rows, and the files that the page has."""
    for device in ("cpu", "h100", "h200"):
        shutil.copytree(ROOT / "results" / device, folder / "results" / device)
    for block in blocks(page):
        if name := file_name(block):
            (folder / name).write_text(block.text)
    return folder


def file_name(block: Block) -> str | None:
    first = re.match(r"# (\w+\.py)\n", block.text)
    return first[1] if first and block.language == "python" else None


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> Iterator[dict[Command, Result]]:
    """Run the commands of all pages, those of a page one after the other in a folder of its own."""
    with pytest.MonkeyPatch.context() as patch:
        commands.on_a_cpu(tmp_path_factory.mktemp("here"), patch)
        patch.setattr(sys, "path", list(sys.path))  # plugins add theirs
        done = {}
        for page in dict.fromkeys(command.page for command in RUN):
            patch.chdir(workplace(page, tmp_path_factory.mktemp(page.stem)))
            for command in RUN:
                if command.page == page:
                    done[command] = run(command.words[1:], patch)
        yield done


def run(words: Sequence[str], patch: pytest.MonkeyPatch) -> Result:
    for name, empty in (("_plugged", []), ("_by_plugin", {})):
        patch.setattr(registry, name, empty)
    if words[0] == "sweep" and "--dry-run" not in words:
        words = [*words, *TINY, "--device", "cpu"]
    return commands.run(*words, COLUMNS="120", NO_COLOR="1")


@pytest.mark.parametrize("command", RUN, ids=str)
def test_a_command_does_what_the_page_says(command, ran):
    done = ran[command]
    assert done.exit_code == command.exit_code, done.stderr
    printed = iter(" ".join(line.split()) for line in done.stdout.splitlines())
    for line in command.output:
        assert " ".join(line.split()) in printed, f"{line!r} is not in its place in\n{done.stdout}"


@pytest.mark.parametrize("command", [*IN_BLOCKS, *IN_TEXT], ids=str)
def test_a_command_exists_with_its_options(command, monkeypatch):
    monkeypatch.setattr(registry, "plug_in", lambda _: None)  # the files of a page lie elsewhere
    tool, *arguments = command.words
    if tool == "make":
        targets = re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert {word for word in arguments if "=" not in word} <= set(targets)
    elif tool == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert arguments[0] == "install"
        assert set(re.fullmatch(r"\.\[(.*)\]", arguments[1])[1].split(",")) <= set(extras)  # type: ignore[index]
    elif tool == "python":
        assert (ROOT / arguments[2 if arguments[:2] == ["-m", "pytest"] else 0]).exists()
    else:
        assert tool == "tflabench"
        parse(arguments)


def parse(arguments: Iterable[str]) -> None:
    """Parse arguments as the command line does, without running anything; a usage error is raised."""
    command, name, left = COMMANDS, "", list(arguments)
    while hasattr(command, "commands"):
        name, *left = left
        assert name in command.commands, f"there is no command {name}"
        command = command.commands[name]
    needed = [p for p in command.params if p.required and not p.opts[0].startswith("-")]
    if left or not needed:  # a name alone, in a sentence, is no call
        command.make_context(name, left)


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.stem)
def test_options_and_files_named_in_the_text_exist(page):
    known = {option for command in commands_below(COMMANDS) for p in command.params for option in p.opts}
    known |= {"--help", *(option for c in commands_below(COMMANDS) for p in c.params for option in p.secondary_opts)}
    for code in code_in_text(page):
        if code.startswith("--"):
            assert code.split()[0] in known, code
        if re.fullmatch(r"\.?(tests|kernels|tflabench|baselines|docs|results|ci)/[\w./-]+", code):
            assert (ROOT / code).exists(), code


def commands_below(group: Any) -> list[Any]:
    if not hasattr(group, "commands"):
        return [group]
    return [command for below in group.commands.values() for command in commands_below(below)]


def test_the_reference_of_the_command_line_is_what_is_generated():
    spec = importlib.util.spec_from_file_location("generate_cli", ROOT / "docs" / "generate_cli.py")
    assert spec
    assert spec.loader
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    assert CLI.read_text() == generator.page(), "run `python docs/generate_cli.py`"


# --- snippets


def run_snippets(page: Path) -> dict[str, Any]:
    """Run the Python blocks of a page one after the other, and return the names that they leave."""
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    for block in blocks(page):
        if block.language == "python":
            code = compile("\n" * block.line + block.text, str(page), "exec")
            if block.mark is None and not file_name(block):
                exec(code, names)
    return names


@pytest.fixture(scope="module")
def kernels() -> dict[str, Any]:
    """The names that the page on the kernels leaves."""
    return run_snippets(ROOT / "docs" / "use-the-kernels.md")


def test_the_snippets_of_the_kernels_run(kernels):
    torch.testing.assert_close(kernels["same"], kernels["y"])
    assert kernels["q"].grad.isfinite().all()
    assert kernels["final_state"].shape == (2, 4, 64, 128)


def test_states_continue_and_packed_sequences_do_not(kernels):
    """In float32 on the CPU, as the page does in bfloat16 wherever it runs."""
    ops, half = kernels["ops"], kernels["half"]
    inputs = [kernels[name].detach().float().cpu() for name in "qkvif"]
    h = ops.mlstm_sig(*inputs)
    _, state = ops.mlstm_sig(*(x[:, :, :half] for x in inputs), return_last_state=True)
    second = ops.mlstm_sig(*(x[:, :, half:] for x in inputs), initial_state=state)
    torch.testing.assert_close(second, h[:, :, half:])
    first = [x[:1] for x in inputs]
    packed = ops.mlstm_sig(*first, cu_seqlens=kernels["cu_seqlens"])
    for document in (slice(0, 100), slice(100, 220), slice(220, 300)):
        alone = ops.mlstm_sig(*(x[:, :, document] for x in first))
        torch.testing.assert_close(packed[:, :, document], alone)


def test_the_snippets_of_the_other_pages_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(workplace(README, tmp_path))
    names = run_snippets(README)
    assert names["h"].shape == names["v"].shape
    assert names["i"].grad.isfinite().all()
    assert names["h_next"].shape == (2, 4, 32)
    assert "q is on cpu" in capsys.readouterr().out
    for page in GUIDES:
        if page.stem != "use-the-kernels":
            run_snippets(page)


# --- links


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = (re.sub(r"[`*]", "", line) for line in re.findall(r"^#+ (.*)$", text, re.MULTILINE))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [page for page in LINKING if page.suffix == ".md"], ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    text = page.read_text()
    for link in [*re.findall(r"\]\(([^()\s]+)\)", text), *re.findall(r'(?:src|href)="([^"]+)"', text)]:
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.resolve().parent / path) if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_version_is_the_same_wherever_it_stands():
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert tflabench.__version__ == PROJECT["version"]
    assert re.search(rf"^## {re.escape(PROJECT['version'])} - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE)
