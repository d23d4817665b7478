"""The command that holds the paper's claims against measured rows: claims."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from tflabench.cli.common.app import app
from tflabench.cli.common.paths import Results

if TYPE_CHECKING:
    from rich.table import Table

    from tflabench.conclusions.claims import Outcome

STYLES = {"holds": "green", "does not hold": "red", "not measurable": "dim"}
WIDTH = 120  # of tables where nobody's terminal limits them


@app.command()
def claims(
    directory: Results,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Hold the paper's claims against measured rows, for its own kernels (nxai_*) and ours (tfla_*)."""
    from rich.console import Console

    from tflabench.conclusions.campaigns import campaigns
    from tflabench.conclusions.claims import check_all, needed
    from tflabench.rows.load import find_results

    outcomes = check_all(campaigns(find_results(directory)))
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
                "values": outcome.values,
                "over": outcome.claim.over,
                "reason": outcome.reason,
                "folder": outcome.folder,
            }
            for outcome in outcomes
        ]
        print(json.dumps(found, indent=2))
        return
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = WIDTH
    console.print(_table(outcomes))


def _table(outcomes: list[Outcome]) -> Table:
    """A line a claim; where the kernels say different things, a second one below it."""
    from rich.table import Table
    from rich.text import Text

    from tflabench.conclusions.claims import needed

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("claim", "needs", "kernels", "measured, or why not", "verdict"):
        table.add_column(column, no_wrap=column in ("kernels", "verdict"), overflow="fold")
    by_claim: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_claim.setdefault(outcome.claim.says, []).append(outcome)
    for says, own in by_claim.items():
        claim = own[0].claim
        needs = "; ".join(words for words in (needed(claim), claim.criterion) if words)
        same = len({(outcome.verdict, outcome.reason, outcome.measured) for outcome in own}) == 1
        for n, outcome in enumerate(own[:1] if same else own):
            kernels = "" if not claim.needs else " ".join(one.kernels for one in own) if same else outcome.kernels
            told = "; ".join(words for words in (outcome.measured, outcome.reason) if words)
            verdict = Text(outcome.verdict, STYLES[outcome.verdict])
            table.add_row(*((says, needs) if n == 0 else ("", "")), kernels, told, verdict)
    return table
