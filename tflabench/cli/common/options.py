"""Options that several commands share: one name, one help text."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def _seconds(words: str, default: str) -> Any:
    return typer.Option(metavar="SECONDS", min=0, help=words, show_default=default)


# --- What to measure, and how

Preset = Annotated[
    str,
    typer.Option(
        metavar="NAME|FILE", help="What to measure: a name from tflabench/selection/presets, or a .toml file."
    ),
]
Axes = Annotated[
    list[str] | None,
    typer.Option(
        "-a",
        "--axis",
        metavar="AXIS=VALUES",
        help="Replace an axis, and run its values in this order: seq_len=512:65536:x2, chunk_size=128,64.",
    ),
]
Impl = Annotated[
    list[str] | None, typer.Option(metavar="PATTERN", help="Only these implementations: 'sdpa*,tfla_sig_*'.")
]
Device = Annotated[str, typer.Option(help="auto, cuda or cpu.")]
Plugin = Annotated[
    list[str] | None,
    typer.Option(metavar="MODULE", help="Module or .py file whose IMPLEMENTATIONS are measured too."),
]
Timeout = Annotated[
    float,
    typer.Option(
        min=1,
        help="Seconds for one point, from its build to its last sample. After one that took longer, those of the same "
        "implementation, pass, head dimensions, chunk size and dtype that have no shorter sequences and no fewer steps "
        "in all are not tried: they are timeouts too, until the next call.",
    ),
]


StopAfter = Annotated[
    float | None,
    _seconds(
        "Begin no point after this time; rounds under way are finished. The same command measures the rest.",
        "all are measured",
    ),
]
VerifySeconds = Annotated[
    float | None,
    _seconds(
        "What the float64 check of one point may take: it checks as many steps as fit, 512 whatever they take.",
        "0.8; 0.15 where the preset is short",
    ),
]
TuneSeconds = Annotated[
    str,
    typer.Option(
        metavar="SECONDS|full",
        help="What the autotuners of one point may take. Rows of a peer that was not tuned in full are marked.",
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        min=0, help="Kernels compiled at a time while the GPU measures; 0: none ahead.", show_default="cores - 2"
    ),
]
MemoryLimit = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Host memory for one point, e.g. 8GiB.",
        show_default="on CPUs 80% of what is free",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]

# --- Theory

Gate = Annotated[str, typer.Option(help="exp or sig.")]
Dhv = Annotated[int, typer.Option("--d-hv", help="Head dimension of values and hidden states.")]
Dqk = Annotated[int, typer.Option("--d-qk", help="Head dimension of queries and keys.")]
CausalFactor = Annotated[float, typer.Option(help="Part of the quadratic work done: 0.5 ideal, 1 all of it.")]
StateDtype = Annotated[str, typer.Option(help="Of the recurrent states in memory.")]
Dtype = Annotated[str, typer.Option(help="Of q, k, v and the gates.")]
CountsOption = Annotated[str, typer.Option(help="published (Table 17, eqs. 111-121) or exact (sums of Table 8).")]
PeakTflops = Annotated[float | None, typer.Option(help="Peak dense matrix rate, in place of the GPU's.")]
JsonObject = Annotated[bool, typer.Option("--json", help="One JSON object on stdout instead of tables.")]
BandwidthTbs = Annotated[float | None, typer.Option(help="Memory bandwidth in TB/s, in place of the GPU's.")]
