"""The command that holds the paper's claims against measured rows: claims."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tflabench.cli.common import app
from tflabench.cli.common.console import RenderableType, Unwrapped, emit
from tflabench.cli.common.options import Json
from tflabench.cli.common.paths import Results
from tflabench.conclusions.tables import FittedTable, TableColumn

if TYPE_CHECKING:
    from tflabench.conclusions.claims import Outcome

STYLES = {"holds": "green", "does not hold": "red", "not measurable": "dim"}


@app.command("claims")
def claims(directory: Results, json_: Json = False) -> None:
    """Hold the paper's claims against measured rows, for its own kernels (`nxai_*`) and ours (`tfla_*`)."""
    from tflabench.conclusions.campaigns import campaigns
    from tflabench.conclusions.claims import check_all
    from tflabench.rows.load import find_results

    outcomes = check_all(campaigns(find_results(directory)))
    emit([_as_json(outcome) for outcome in outcomes], _text(outcomes), json_)


def _text(outcomes: Sequence[Outcome]) -> Iterator[RenderableType]:
    """Yield the table of claims, and the commands that would decide those that the rows leave open."""
    yield _table(outcomes)
    by_command: dict[str, list[str]] = {}
    for outcome in outcomes:
        if outcome.command:
            by_command.setdefault(outcome.command, []).append(outcome.claim.says)
    if by_command:
        yield "\nWhat is not measurable with these rows would be decided by"
    for command, claims in by_command.items():
        yield from (Unwrapped(line) for line in (f"  {command}", *(f"    {says}" for says in claims)))


def _as_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "claim": outcome.claim.says,
        "source": outcome.claim.source,
        "kernels": outcome.kernels,
        "criterion": outcome.claim.criterion,
        "verdict": outcome.verdict,
        "measured": "" if outcome.claim.kind == "modelled" else outcome.words,
        "modelled": outcome.words if outcome.claim.kind == "modelled" else "",
        "values": {at: number.value for at, number in outcome.numbers.items()},
        "intervals": {at: [number.low, number.high] for at, number in outcome.numbers.items()},
        "over": outcome.claim.over,
        "reason": outcome.reason,
        "folder": outcome.folder,
        "command": outcome.command,
    }


def _table(outcomes: Sequence[Outcome]) -> FittedTable:
    """Return a table with a line a claim and set of kernels; the claim stands in the first of its lines."""
    first = {id(outcome.claim): outcome for outcome in reversed(outcomes)}

    def numbers(outcome: Outcome) -> str:
        """Return the numbers, and why the claim does not hold or is not measurable."""
        kind = "modelled: " if outcome.numbers and outcome.claim.kind == "modelled" else ""
        return "; ".join(filter(None, (kind + outcome.words, outcome.reason)))

    def once(outcome: Outcome, text: str) -> str:
        return text if first[id(outcome.claim)] is outcome else ""

    columns = [
        TableColumn("claim", lambda outcome: once(outcome, outcome.claim.says), enough=16),
        TableColumn("required", lambda outcome: once(outcome, outcome.claim.criterion), drop=1, enough=24),
        TableColumn("kernels", lambda outcome: outcome.kernels, "<"),
        TableColumn("measured, or why not", numbers, enough=16),
        TableColumn("verdict", lambda outcome: outcome.verdict, "<"),
    ]
    return FittedTable(columns, outcomes, lambda outcome: STYLES[outcome.verdict])
