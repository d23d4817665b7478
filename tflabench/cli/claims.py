"""The command that holds the paper's claims against measured rows: claims."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tflabench.cli.common import app
from tflabench.cli.common.console import print_json
from tflabench.cli.common.options import Json
from tflabench.cli.common.paths import Results, file_to_write, out_file

if TYPE_CHECKING:
    from rich.table import Table

    from tflabench.conclusions.claims import Outcome

STYLES = {"holds": "green", "does not hold": "red", "not measurable": "dim"}
WIDTH = 120  # of tables where nobody's terminal limits them


@app.command("claims")
def claims(
    directory: Results,
    json_: Json = False,
    out: Annotated[Path | None, out_file("claims.md", "the claims are printed")] = None,
) -> None:
    """Hold the paper's claims against measured rows, for its own kernels (nxai_*) and ours (tfla_*).

    With --out they are written as Markdown, a table a device.
    """
    from rich.console import Console

    from tflabench.conclusions.campaigns import campaigns
    from tflabench.conclusions.claim import needed
    from tflabench.conclusions.claims import check_all
    from tflabench.rows.errors import find_errors
    from tflabench.rows.load import find_results

    if out is not None:
        from tflabench.conclusions.claims_page import write

        print(write(directory, file_to_write(out, "claims.md")))
        return
    outcomes = check_all(campaigns(find_results(directory)), find_errors(directory))
    if json_:
        found = [
            {
                "claim": outcome.claim.says,
                "source": outcome.claim.source,
                "needs": needed(outcome.claim),
                "kernels": outcome.kernels,
                "criterion": outcome.claim.criterion,
                "verdict": outcome.verdict,
                "measured": outcome.measured,
                "modelled": outcome.modelled,
                "values": outcome.values,
                "intervals": {at: [span.low, span.high] for at, span in outcome.spans.items()},
                "over": outcome.claim.over,
                "reason": outcome.reason,
                "folder": outcome.folder,
                "command": outcome.command,
            }
            for outcome in outcomes
        ]
        print_json(found)
        return
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = WIDTH
    console.print(_table(outcomes))
    for line in _commands(outcomes):
        console.print(line, soft_wrap=True)


def _table(outcomes: list[Outcome]) -> Table:
    """Return a table with a line a claim; where the kernels say different things, a second one below it."""
    from rich.table import Table
    from rich.text import Text

    from tflabench.conclusions.claim import needed

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("claim", "needs", "kernels", "measured, or why not", "modelled", "verdict"):
        table.add_column(column, no_wrap=column in ("kernels", "verdict"), overflow="fold")
    by_claim: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_claim.setdefault(outcome.claim.says, []).append(outcome)
    for says, own in by_claim.items():
        claim = own[0].claim
        needs = "; ".join(words for words in (needed(claim), claim.criterion) if words)
        alike = {(outcome.verdict, outcome.reason, outcome.measured, outcome.modelled) for outcome in own}
        for n, outcome in enumerate(own[:1] if len(alike) == 1 else own):
            kernels = " ".join(one.kernels for one in own) if len(alike) == 1 else outcome.kernels
            cells = [outcome.measured, outcome.modelled]
            told = 1 if outcome.modelled else 0  # the reason stands where the values do
            cells[told] = "; ".join(words for words in (cells[told], outcome.reason) if words)
            verdict = Text(outcome.verdict, STYLES[outcome.verdict])
            table.add_row(*((says, needs) if n == 0 else ("", "")), "" if len(own) == 1 else kernels, *cells, verdict)
    return table


def _commands(outcomes: list[Outcome]) -> list[str]:
    """Return the commands that would decide the other claims, each with its claims below it."""
    by_command: dict[str, list[str]] = {}
    for outcome in outcomes:
        if outcome.command:
            by_command.setdefault(outcome.command, []).append(outcome.claim.says)
    lines = ["", "What is not measurable with these rows would be decided by"] if by_command else []
    for deciding, claims in by_command.items():
        lines += [f"  {deciding}", *(f"    {says}" for says in claims)]
    return lines
