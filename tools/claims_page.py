"""The page results/claims.md: the paper's claims, and what stored rows say of each. `tools/pages.py` writes it."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import shorten

from headline import plain

from tflabench.conclusions.campaigns import Campaign, campaigns
from tflabench.conclusions.claim import Outcome
from tflabench.conclusions.claims import check_all
from tflabench.rows.load import find_results
from tflabench.theory.hardware import short_devices

LONGEST_REASON = 100  # characters
KERNELS = {"nxai": "mlstm_kernels", "tfla": "ours"}
HEAD = """\
# The paper's claims

Made by `python tools/pages.py` from stored rows; do not edit.

A line is a claim of the [TFLA paper](https://arxiv.org/abs/2503.14376), with the number that it states, and
what was measured here: of mlstm_kernels, the paper's own (`nxai_*`), and of our Triton kernels (`tfla_*`). A
printed number stands for all that round to it. A claim *holds* unless what was measured, with its spread
over the rounds of a comparison, misses it as a whole.
"""

Outcomes = Mapping[tuple[str, str], Outcome]  # of one claim, by device and kernels


def markdown(root: Path) -> str:
    """Return the page about all results at and below `root`, where it lies."""
    by_claim = _by_claim(root)
    devices = dict.fromkeys(device for outcomes in by_claim.values() for device, _ in outcomes)
    heads = [f"{who}, {device}" for device in devices for who in KERNELS.values()]
    table = [f"|claim|{'|'.join(heads)}|", "|---|" + "---|" * len(heads)]
    undecided, theory = [], []
    for outcomes in by_claim.values():
        first = next(iter(outcomes.values()))
        claim = first.claim
        required = plain(f"{claim.says} ({claim.source}): {claim.criterion}")
        if claim.theory:
            theory.append(f"|{required}|{_cell(first)}|")
        elif any(outcome.decided for outcome in outcomes.values()):
            cells = [_cell(outcomes[device, kernels], root) for device in devices for kernels in KERNELS]
            table.append(f"|{required}|{'|'.join(cells)}|")
        else:
            undecided.append(first)
    rest = ["", "By the paper's own formulas:", "", "|claim|verdict|", "|---|---|", *theory]
    rest += ["", "Not measured:", "", *_undecided(undecided)] if undecided else []
    return "\n".join([HEAD, *table, *rest]) + "\n"


def _by_claim(root: Path) -> Mapping[str, Outcomes]:
    """Return the outcomes of each claim on the devices that decide any."""
    by_device: dict[str, list[Campaign]] = defaultdict(list)
    for campaign in campaigns(find_results(root)):
        by_device[campaign.device].append(campaign)
    by_claim: dict[str, dict[tuple[str, str], Outcome]] = defaultdict(dict)
    short = short_devices(by_device)
    for device, measured in sorted(by_device.items()):
        outcomes = check_all(measured)
        if any(outcome.decided and not outcome.claim.theory for outcome in outcomes):
            for outcome in outcomes:
                by_claim[outcome.claim.says][short[device], outcome.kernels] = outcome
    return by_claim


def _undecided(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield what could not be decided anywhere, why, and the command that would decide it."""
    for outcome in outcomes:
        reason = shorten(outcome.reason, LONGEST_REASON, placeholder=" ...")
        command = f". To decide it: `{outcome.command}`" if outcome.command else ""
        yield f"- {plain(f'{outcome.claim.says} ({outcome.claim.source}): {reason}')}{command}"


def _cell(outcome: Outcome, linked_from: Path = Path()) -> str:
    """Return a verdict with the numbers behind it and where they are from, or why there are none."""
    if not outcome.decided:
        return plain(shorten(outcome.reason, LONGEST_REASON, placeholder=" ..."))
    verdict = outcome.verdict if outcome.verdict == "holds" else f"**{outcome.verdict}**"
    link = f" ([rows]({Path(os.path.relpath(outcome.folder, linked_from)).as_posix()}))" if outcome.folder else ""
    return f"{verdict}: {plain(outcome.words)}{link}"
