"""Options that several commands share: one name, one help text of one sentence, one panel of `--help`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tflabench.problem import InputError, parse_bytes

# Panels of `--help`.
WHAT = "What to measure"
HOW = "How to measure"
PROBLEM = "Problem"
MODEL = "Model"
CHIP = "GPU"
OUTPUT = "Output"
MOST_CHOICES = 10_000  # samples, calls, rows of a table: more is a slip
MOST_SECONDS = 1e9


def option(panel: str | None, metavar: str | None, line: str, *names: str, **more: Any) -> Any:
    """Return an option.

    Args:
        panel: below which heading of `--help` it stands.
        metavar: what stands for its value there; None for a flag.
        line: its help text, one sentence.
        names: where they do not follow from the parameter's.
        more: as `typer.Option` takes it.
    """
    return typer.Option(*names, metavar=metavar, rich_help_panel=panel, help=line, **more)


def seconds(panel: str, line: str, *names: str, least: float = 0, **more: Any) -> Any:
    """Return an option for a time, of which MOST_SECONDS are as good as endless."""

    def limited(value: float | None) -> float | None:
        return value and min(value, MOST_SECONDS)

    return option(panel, "SECONDS", line, *names, min=least, callback=limited, **more)


def memory(panel: str, line: str, name: str, **more: Any) -> Any:
    """Return an option for a size of memory, which gives the command bytes."""
    return option(panel, "SIZE", line, name, parser=lambda text: parse_bytes(name, text), **more)


def words(text: str) -> list[str]:
    """Return the parts of a comma-separated option."""
    return [word.strip() for word in text.split(",")]


def _patterns(given: list[str] | None) -> list[str] | None:
    from tflabench.implementations.registry import split

    if given and not (patterns := split(",".join(given))):
        raise InputError(f"--impl is {','.join(given)!r}: it must name implementations, such as 'tfla_*'")
    return patterns if given else None


def _plugged(modules: list[str] | None) -> list[str] | None:
    from tflabench.implementations import registry

    for name in modules or ():
        registry.plug_in(name)
    return modules


def complete_presets(incomplete: str) -> list[str]:
    """Return the bundled presets and the TOML files that begin like this."""
    from tflabench.selection.presets import preset_names

    files = sorted(str(path) for path in Path().glob("*.toml"))
    return [name for name in (*preset_names(), *files) if name.startswith(incomplete)]


def complete_gpus(incomplete: str) -> list[str]:
    """Return comma-separated GPUs with the last one completed, by the names of known ones.

    Words hang together by "-", which `hardware.find` takes for a space: a shell would split the name.
    """
    from tflabench.theory import hardware

    before, comma, last = incomplete.rpartition(",")
    names = (name.replace(" ", "-") for gpu in hardware.KNOWN for name in (gpu.name, *gpu.aliases))
    return [f"{before}{comma}{name}" for name in dict.fromkeys(names) if name.startswith(last)]


# --- What to measure, and how

Preset = Annotated[
    str,
    option(
        WHAT,
        "NAME|FILE",
        "Take the sizes of a preset of `tflabench list`, or of a .toml or .csv file.",
        autocompletion=complete_presets,
    ),
]
AXIS = "Replace an axis by values in this order: seq_len=512:65536:x2, chunk_size=128,64."
Axes = Annotated[list[str] | None, option(WHAT, "AXIS=VALUES", AXIS, "-a", "--axis")]
IMPL = "Take only these implementations, such as 'sdpa*,tfla_sig_*'."
Impl = Annotated[list[str] | None, option(WHAT, "PATTERN", IMPL, callback=_patterns)]
PLUGIN = "Take the IMPLEMENTATIONS of this module or .py file too."
Plugin = Annotated[list[str] | None, option(WHAT, "MODULE", PLUGIN, callback=_plugged)]
Device = Annotated[str, option(HOW, "DEVICE", "Measure on this device: auto, cuda or cpu.")]
TIMEOUT = "Stop a point that takes longer, and try none after it that would take as long or longer."
Timeout = Annotated[float, seconds(HOW, TIMEOUT, least=1)]
StopAfter = Annotated[
    float | None,
    seconds(
        HOW, "Begin no point after this time: the same command measures the rest.", show_default="all are measured"
    ),
]
VERIFY = "Give the float64 check of one point this time, at least 512 steps."
VerifySeconds = Annotated[float | None, seconds(HOW, VERIFY, show_default="0.8; short presets 0.15")]
TUNE = "Give the autotuners of one point this time, or `full` for all that they try."
TuneSeconds = Annotated[str, option(HOW, "SECONDS", TUNE)]
JOBS = "Warm up this many points at a time, which compiles their kernels; 0 compiles each when it is its turn."
Jobs = Annotated[int | None, option(HOW, "N", JOBS, min=0, max=1024, show_default="cores - 2, at most 8")]
LIMIT = "Let one point allocate this much host memory, such as 8GiB."
MemoryLimit = Annotated[int | None, memory(HOW, LIMIT, "--memory-limit", show_default="on CPUs 80% of what is free")]
Gpus = Annotated[
    str | None,
    option(
        HOW,
        "N|all",
        "Measure on so many GPUs of this machine, a comparison at a time on each.",
        show_default="the first, without a process of its own",
    ),
]
PAPER = "Take exactly 10 warm-ups and 30 samples, in one round."
PaperProtocol = Annotated[bool, option(HOW, None, PAPER, "--paper-protocol")]
DryRun = Annotated[bool, option(HOW, None, "Print what would be measured, and about how long it takes.", "--dry-run")]

# --- Output

FULL = "Print every problem and every failure at the end, where it names the first otherwise."
Full = Annotated[bool, option(OUTPUT, None, FULL, "--full")]
Json = Annotated[bool, option(OUTPUT, None, "Print one JSON document on stdout instead of text.", "--json")]
Formats = Annotated[str, option(OUTPUT, "FORMATS", "Write any of png, svg and pdf, comma-separated.", "--format")]

# --- Problem

Dhv = Annotated[int, option(PROBLEM, "N", "Head dimension of values and states.", "--d-hv")]
Dqk = Annotated[int, option(PROBLEM, "N", "Head dimension of queries and keys.", "--d-qk")]
Heads = Annotated[int, option(PROBLEM, "N", "Number of heads.")]
SeqLen = Annotated[int, option(PROBLEM, "N", "Sequence length T, in steps.")]
Batch = Annotated[int, option(PROBLEM, "N", "Sequences of one call.")]
Dtype = Annotated[str, option(PROBLEM, "DTYPE", "Dtype of q, k, v and the gates.")]
Gate = Annotated[str, option(PROBLEM, "GATE", "Gate: exp or sig of the mLSTM, gla, delta_net, gated_delta_net or kda.")]
Pass = Annotated[str, option(PROBLEM, "PASS", "Pass: fw, or fwbw with the backward.", "--pass")]
BUDGET = "Take what fits into this much GPU memory, such as 8GiB."
MemoryBudget = Annotated[int | None, memory(PROBLEM, BUDGET, "--memory-budget", show_default="no limit")]

# --- Model and GPU

CausalFactor = Annotated[float, option(MODEL, "X", "Part of the quadratic work that is done: 0.5 to 1.")]
StateDtype = Annotated[str, option(MODEL, "DTYPE", "Dtype of the recurrent states in memory.")]
COUNTS = "Counts of FLOPs: published (Table 17, eqs. 111 to 121) or exact (sums of Table 8)."
CountsName = Annotated[str, option(MODEL, "COUNTS", COUNTS)]
GpuName = Annotated[
    str | None,
    option(
        CHIP,
        "NAME",
        "Take this GPU of `tflabench gpus`, or that of a .toml file.",
        autocompletion=complete_gpus,
        show_default="this machine's, else H100",
    ),
]
