"""Options that several commands share: one name, one help text of one sentence, one panel of `--help`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tflabench.cli.common import complete

# Panels of `--help`.
WHAT = "What to measure"
HOW = "How to measure"
PROBLEM = "Problem"
MODEL = "Model"
CHIP = "GPU"
OUTPUT = "Output"
MOST_CHOICES = 10_000  # samples, calls, rows of a table: more is a slip


def _seconds(words: str, default: str) -> Any:
    return typer.Option(metavar="SECONDS", min=0, help=words, show_default=default, rich_help_panel=HOW)


# --- What to measure, and how

Axes = Annotated[
    list[str] | None,
    typer.Option(
        "-a",
        "--axis",
        metavar="AXIS=VALUES",
        rich_help_panel=WHAT,
        help="Replace an axis by values in this order: seq_len=512:65536:x2, chunk_size=128,64.",
    ),
]
Impl = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN", rich_help_panel=WHAT, help="Take only these implementations, such as 'sdpa*,tfla_sig_*'."
    ),
]
Device = Annotated[
    str, typer.Option(metavar="DEVICE", rich_help_panel=HOW, help="Measure on this device: auto, cuda or cpu.")
]
Plugin = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODULE", rich_help_panel=WHAT, help="Take the IMPLEMENTATIONS of this module or .py file too."
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        min=1,
        metavar="SECONDS",
        rich_help_panel=HOW,
        help="Stop a point that takes longer, and try none after it that would take as long or longer.",
    ),
]
StopAfter = Annotated[
    float | None,
    _seconds("Begin no point after this time: the same command measures the rest.", "all are measured"),
]
VerifySeconds = Annotated[
    float | None,
    _seconds("Give the float64 check of one point this time, at least 512 steps.", "0.8; short presets 0.15"),
]
TuneSeconds = Annotated[
    str,
    typer.Option(
        metavar="SECONDS",
        rich_help_panel=HOW,
        help="Give the autotuners of one point this time, or `full` for all that they try.",
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=1024,
        metavar="N",
        rich_help_panel=HOW,
        help="Compile this many kernels at a time while the GPU measures; 0 compiles none ahead.",
        show_default="cores - 2",
    ),
]
MemoryLimit = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        rich_help_panel=HOW,
        help="Let one point allocate this much host memory, such as 8GiB.",
        show_default="on CPUs 80% of what is free",
    ),
]
ExecutorName = Annotated[
    str,
    typer.Option(
        "--executor",
        metavar="NAME",
        rich_help_panel=HOW,
        help="Measure on this machine (local), or on all GPUs of a Ray cluster (ray).",
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        rich_help_panel=HOW,
        help="Take the Ray cluster at this address.",
        show_default="the one that runs here, else one is started",
    ),
]
Gpus = Annotated[
    str | None,
    typer.Option(
        metavar="N|all",
        rich_help_panel=HOW,
        help="Measure on so many GPUs of this machine, a comparison at a time on each.",
        show_default="the first, without a process of its own",
    ),
]
MixedVersions = Annotated[
    bool,
    typer.Option(
        "--allow-mixed-versions",
        rich_help_panel=HOW,
        help="Take nodes with other sources or versions too; their rows say so.",
    ),
]
PaperProtocol = Annotated[
    bool,
    typer.Option(rich_help_panel=HOW, help="Take exactly 10 warm-ups and 30 samples, in one round."),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", rich_help_panel=HOW, help="Print what would be measured, and about how long it takes."),
]
Preset = Annotated[
    str,
    typer.Option(
        metavar="NAME|FILE",
        rich_help_panel=WHAT,
        help="Take the sizes of a preset of `tflabench list`, or of a .toml file.",
        autocompletion=complete.presets,
    ),
]
Full = Annotated[
    bool, typer.Option("--full", rich_help_panel=OUTPUT, help="Print every point, where the text is cut otherwise.")
]
Json = Annotated[
    bool, typer.Option("--json", rich_help_panel=OUTPUT, help="Print one JSON document on stdout instead of text.")
]
JsonObject = Json
Formats = Annotated[
    str,
    typer.Option(
        "--format", metavar="FORMATS", rich_help_panel=OUTPUT, help="Write any of png, svg and pdf, comma-separated."
    ),
]

# --- Problem

Dhv = Annotated[
    int, typer.Option("--d-hv", metavar="N", rich_help_panel=PROBLEM, help="Head dimension of values and states.")
]
Dqk = Annotated[
    int, typer.Option("--d-qk", metavar="N", rich_help_panel=PROBLEM, help="Head dimension of queries and keys.")
]
Heads = Annotated[int, typer.Option(metavar="N", rich_help_panel=PROBLEM, help="Number of heads.")]
SeqLen = Annotated[int, typer.Option(metavar="N", rich_help_panel=PROBLEM, help="Sequence length T, in steps.")]
Batch = Annotated[int, typer.Option(metavar="N", rich_help_panel=PROBLEM, help="Sequences of one call.")]
Dtype = Annotated[str, typer.Option(metavar="DTYPE", rich_help_panel=PROBLEM, help="Dtype of q, k, v and the gates.")]
Gate = Annotated[
    str, typer.Option(metavar="GATE", rich_help_panel=PROBLEM, help="Gate: exp or sig of the mLSTM, or gla.")
]
Pass = Annotated[
    str,
    typer.Option("--pass", metavar="PASS", rich_help_panel=PROBLEM, help="Pass: fw, or fwbw with the backward."),
]
MemoryBudget = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        rich_help_panel=PROBLEM,
        help="Take what fits into this much GPU memory, such as 8GiB.",
        show_default="no limit",
    ),
]

# --- Model and GPU

CausalFactor = Annotated[
    float,
    typer.Option(metavar="X", rich_help_panel=MODEL, help="Part of the quadratic work that is done: 0.5 to 1."),
]
StateDtype = Annotated[
    str, typer.Option(metavar="DTYPE", rich_help_panel=MODEL, help="Dtype of the recurrent states in memory.")
]
CountsOption = Annotated[
    str,
    typer.Option(
        metavar="COUNTS",
        rich_help_panel=MODEL,
        help="Counts of FLOPs: published (Table 17, eqs. 111 to 121) or exact (sums of Table 8).",
    ),
]
GpuName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        rich_help_panel=CHIP,
        help="Take this GPU of `tflabench gpus`.",
        autocompletion=complete.gpus,
        show_default="this machine's, else H100",
    ),
]
PeakTflops = Annotated[
    float | None,
    typer.Option(metavar="X", rich_help_panel=CHIP, help="Peak dense matrix rate in TFLOP/s, in place of the GPU's."),
]
BandwidthTbs = Annotated[
    float | None,
    typer.Option(metavar="X", rich_help_panel=CHIP, help="Memory bandwidth in TB/s, in place of the GPU's."),
]
