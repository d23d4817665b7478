"""The generated results/claims.md: the paper's claims, and what stored rows say of each. No torch."""

from __future__ import annotations

import os
import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import shorten

from tflabench.conclusions.campaigns import Campaign, campaigns
from tflabench.conclusions.claim import Outcome
from tflabench.conclusions.claims import check_all
from tflabench.conclusions.markdown import plain, write_page
from tflabench.rows.errors import find_errors
from tflabench.rows.journal import described_runs
from tflabench.rows.load import find_results
from tflabench.theory.hardware import short_devices

LONGEST_REASON = 100  # characters
UNKNOWN = "not measurable"
KERNELS = {"nxai": "mlstm_kernels", "tfla": "ours"}


def write(root: Path, out: Path) -> Path:
    """Write the page about all results at and below `root`.

    Raises:
        InputError: no results, results that cannot be read, or a file that cannot be written.
    """
    return write_page(out, markdown(root, ["tflabench", "claims", str(root), "--out", str(out)], out.parent))


def markdown(root: Path, command: Sequence[str], linked_from: Path = Path()) -> str:
    """Return the page about all results at and below `root`, made by `command`, links relative to `linked_from`.

    Raises:
        InputError: no results, or results that cannot be read.
    """
    by_device: dict[str, list[Campaign]] = defaultdict(list)
    for campaign in campaigns(find_results(root)):
        by_device[campaign.device].append(campaign)
    errors = find_errors(root)
    devices = {
        folder: {run.get("device") for run in described_runs(Path(folder)).values()}
        for folder in {line.folder for line in errors}
    }
    columns: dict[str, list[Outcome]] = {}
    short = short_devices(by_device)
    for device, found in sorted(by_device.items()):
        outcomes = check_all(found, [line for line in errors if device in devices[line.folder]])
        if any(map(_decided, outcomes)):
            columns[short[device]] = outcomes
    return "\n".join([*_opening(command), *_table(columns, linked_from), *_others(columns)]) + "\n"


def _opening(command: Sequence[str]) -> list[str]:
    return [
        "# The paper's claims",
        "",
        f"Made by `{shlex.join(command)}` from stored rows; do not edit.",
        "",
        "A line is a claim of the [TFLA paper](https://arxiv.org/abs/2503.14376), with the number that it states, and",
        "what was measured here: of mlstm_kernels, the paper's own (`nxai_*`), and of our Triton kernels (`tfla_*`). A",
        "printed number stands for all that round to it. A claim *holds* unless what was measured, with its spread",
        "over the rounds of a comparison, misses it as a whole.",
    ]


def _table(columns: Mapping[str, Sequence[Outcome]], linked_from: Path) -> Iterator[str]:
    """Yield a line a claim that some device decides for some kernels."""
    heads = [f"{who}, {device}" for device in columns for who in KERNELS.values()]
    yield from ("", f"|claim|{'|'.join(heads)}|", "|---|" + "---|" * len(heads))
    for says, own in _by_claim(columns).items():
        if not any(map(_decided, own.values())):
            continue
        claim = next(iter(own.values())).claim
        cells = [_cell(own[device, kernels], linked_from) for device in columns for kernels in KERNELS]
        yield f"|{plain(f'{says} ({claim.source})')}: {plain(claim.criterion)}|{'|'.join(cells)}|"


def _others(columns: Mapping[str, Sequence[Outcome]]) -> Iterator[str]:
    """Yield what could not be decided anywhere, why, and the command that would decide it."""
    found = [next(iter(own.values())) for own in _by_claim(columns).values() if not any(map(_decided, own.values()))]
    if found:
        yield from ("", "Not measured:", "")
    for outcome in found:
        what = f"{outcome.claim.says} ({outcome.claim.source}): {_short(outcome.reason)}"
        yield f"- {plain(what)}" + (f". To decide it: `{outcome.command}`" if outcome.command else "")


def _decided(outcome: Outcome) -> bool:
    return outcome.verdict != UNKNOWN


def _by_claim(columns: Mapping[str, Sequence[Outcome]]) -> dict[str, dict[tuple[str, str], Outcome]]:
    """Return the outcomes of each claim by device and kernels."""
    found: dict[str, dict[tuple[str, str], Outcome]] = defaultdict(dict)
    for device, outcomes in columns.items():
        for outcome in outcomes:
            found[outcome.claim.says][device, outcome.kernels] = outcome
    return found


def _short(reason: str) -> str:
    return shorten(reason, LONGEST_REASON, placeholder=" ...")


def _cell(outcome: Outcome, linked_from: Path) -> str:
    """Return a verdict with the values behind it and where they are from, or why there are none."""
    if not _decided(outcome):
        return plain(_short(outcome.reason))
    verdict = f"**{outcome.verdict}**" if outcome.verdict != "holds" else outcome.verdict
    link = ""
    if outcome.folder:
        folder = Path(outcome.folder)
        link = f" ([rows]({Path(os.path.relpath(folder, linked_from)).as_posix()}))"
    return f"{verdict}: {plain(outcome.measured or outcome.modelled)}{link}"
