"""The command that holds the models of runtime against measured rows: model-error."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tflabench.cli.common.app import app
from tflabench.cli.common.checks import one_of
from tflabench.cli.common.console import filled_table, print_json
from tflabench.cli.common.options import JsonObject

if TYPE_CHECKING:
    from tflabench.conclusions.model_error import Verdict
    from tflabench.theory.calibrated import Judged


@app.command("model-error")
def model_error(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A results folder, or one above several.")],
    out: Annotated[
        Path | None, typer.Option(help="Also draw into this folder: errors, and time by term over L.")
    ] = None,
    format_: Annotated[str, typer.Option("--format", help="Any of png, svg, pdf, comma-separated.")] = "png",
    as_json: JsonObject = False,
) -> None:
    """How far the published and the calibrated model are from measured rows, and where the calibrated one is wrong.

    Published: eq. 116 on the datasheet's roofs. Calibrated: the kernels that run, launch by launch, under measured
    roofs; with --out every term of it is drawn over L, with what moves the best L.
    """
    from tflabench.conclusions.model_error import judge
    from tflabench.rows.load import find_results
    from tflabench.theory.calibrated import median_and_worst

    formats = [one_of("format", word.strip(), ("png", "svg", "pdf")) for word in format_.split(",")]
    verdict = judge(find_results(directory))
    groups: dict[tuple[str, str], list[Judged]] = {}
    for row in verdict.judged:
        groups.setdefault((row.implementation, row.problem.pass_), []).append(row)
    groups["all", ""] = list(verdict.judged)
    summary = [
        {"implementation": name, "pass": pass_, "rows": len(rows)}
        | {
            f"{model}_{kind}": value
            for n, model in enumerate(("published", "calibrated"))
            for kind, value in zip(("median", "worst"), median_and_worst(row.errors[n] for row in rows), strict=True)
        }
        for (name, pass_), rows in groups.items()
    ]
    if out:
        _draw_models(verdict, out, formats)
    if as_json:
        rows = [
            {"implementation": row.implementation, "algorithm": row.kernel.algorithm, **row.problem.columns()}
            | {
                "ms_measured": row.measured * 1e3,
                "ms_published": row.published * 1e3,
                "ms_calibrated": row.calibrated * 1e3,
            }
            | {"ms_by_term": {term: seconds * 1e3 for term, seconds in row.terms.items()}}
            for row in verdict.judged
        ]
        print_json({"errors": summary, "rows": rows, "not_described": verdict.others})
        return

    from rich.console import Console

    console = Console(highlight=False)
    header = ("implementation", "pass", "rows", "published\nmedian", "\nworst", "calibrated\nmedian", "\nworst")
    table = [
        (
            str(row["implementation"]), str(row["pass"]), str(row["rows"]), f"{row['published_median']:.0%}",
            f"{row['published_worst']:+.0%}", f"{row['calibrated_median']:.0%}", f"{row['calibrated_worst']:+.0%}",
        )
        for row in summary
    ]  # fmt: skip
    console.print(filled_table(header, table))
    console.print("Absolute error of the predicted time; worst with its sign: + is predicted too slow.")
    for name, told in verdict.told_roofs().items():
        for roofs in told:
            console.print(f"{name.capitalize()} model, roofs: {roofs}")
    console.print("The calibrated model is furthest off at:", style="bold")
    for row in sorted(verdict.judged, key=lambda row: -abs(row.errors[1]))[:5]:
        p, most = row.problem, max(row.terms, key=row.terms.__getitem__)
        size = f"B={p.batch} T={p.seq_len} heads {p.heads}x{p.d_qk}/{p.d_hv} L={p.chunk_size}"
        times = f"{row.measured * 1e3:.3g} ms measured, {row.calibrated * 1e3:.3g} modelled ({row.errors[1]:+.0%})"
        console.print(f"  {row.implementation} {p.pass_} {size}: {times}, most of it {most}")
    if verdict.others:
        counts = ", ".join(f"{name} ({count})" for name, count in verdict.others.items())
        console.print(f"Rows that the calibrated model does not describe: {counts}")


def _draw_models(verdict: Verdict, out: Path, formats: Sequence[str]) -> None:
    from tflabench.figures import model_errors as model
    from tflabench.figures import theory

    theory.make_folder(out)
    for stem, figure in [("model-error", model.errors(verdict)), *model.breakdowns(verdict)]:
        for suffix in formats:
            theory.save(figure, out / f"{stem}.{suffix}")
            print(f"wrote {out / stem}.{suffix}", file=sys.stderr)
