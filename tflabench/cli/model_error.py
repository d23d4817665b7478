"""The command that holds the models of runtime against measured rows: model-error."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tflabench.cli.common import app
from tflabench.cli.common.console import filled_table, print_json
from tflabench.cli.common.options import Formats, JsonObject
from tflabench.cli.common.paths import SomeResults, folder_to_write, out_folder
from tflabench.problem import InputError, one_of

if TYPE_CHECKING:
    from rich.console import Console

    from tflabench.conclusions.fitting import Crossed
    from tflabench.conclusions.model_error import Errors, Family, Verdict
    from tflabench.theory.calibrated import Judged


@app.command("model-error")
def model_error(
    directories: SomeResults = None,
    constants: Annotated[
        bool, typer.Option(help="List the constants of the calibrated model and where each is from, nothing else.")
    ] = False,
    fit: Annotated[
        bool, typer.Option(help="Fit the one fitted constant on a part of the rows and judge it on the others.")
    ] = False,
    out: Annotated[Path | None, out_folder("nothing is drawn")] = None,
    format_: Formats = "png",
    as_json: JsonObject = False,
) -> None:
    """Hold the published and the calibrated model to measured rows, and say where the calibrated one is wrong.

    Published: eq. 116 on the datasheet's roofs. Calibrated: the kernels that run, launch by launch, under measured
    roofs; with --out every term of it is drawn over L, with what moves the best L. Errors on rows that its constant was
    fitted on stand apart from those on rows that no constant has seen.
    """
    from tflabench.conclusions.fitting import cross
    from tflabench.conclusions.model_error import judge
    from tflabench.rows.load import find_results

    if constants:
        _print_constants(as_json)
        return
    if not directories:
        raise InputError("DIR is not given: it must be a results folder, or one above several")
    formats = [one_of("format", word.strip(), ("png", "svg", "pdf")) for word in format_.split(",")]
    verdict = judge(results for directory in directories for results in find_results(directory))
    crossed = cross(verdict.judged) if fit else None
    if out:
        _draw_models(verdict, out, formats)
    if as_json:
        print_json(_json(verdict, crossed))
        return
    _print(verdict, crossed)


def _summary(verdict: Verdict) -> list[dict[str, Any]]:
    """Return the errors of both models by implementation and pass, then of all rows."""
    from tflabench.theory.calibrated import median_and_worst

    groups: dict[tuple[str, str], list[Judged]] = {}
    for row in verdict.judged:
        groups.setdefault((row.implementation, row.problem.pass_), []).append(row)
    groups["all", ""] = list(verdict.judged)
    return [
        {"implementation": name, "pass": pass_, "rows": len(rows)}
        | {
            f"{model}_{kind}": value
            for n, model in enumerate(("published", "calibrated"))
            for kind, value in zip(("median", "worst"), median_and_worst(row.errors[n] for row in rows), strict=True)
        }
        for (name, pass_), rows in groups.items()
    ]


def _json(verdict: Verdict, crossed: Sequence[Crossed] | None) -> dict[str, Any]:
    """Return everything as one document; fits are in it where they were asked for."""
    from tflabench.conclusions.model_error import families

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
    apart = {"families": [asdict(family) for family in families(verdict.judged)]}
    fits = {} if crossed is None else {"fits": [asdict(found) for found in crossed]}
    return {"errors": _summary(verdict)} | apart | fits | {"rows": rows, "not_described": verdict.others}


def _print(verdict: Verdict, crossed: Sequence[Crossed] | None) -> None:
    """Print the errors by family, fits where asked for, by implementation, and where they are largest."""
    from rich.console import Console

    from tflabench.conclusions.model_error import families

    console = Console(highlight=False)
    _print_families(console, families(verdict.judged))
    if crossed is not None:
        _print_fits(console, crossed)
    header = ("implementation", "pass", "rows", "published\nmedian", "\nworst", "calibrated\nmedian", "\nworst")
    table = [
        (
            str(row["implementation"]), str(row["pass"]), str(row["rows"]), f"{row['published_median']:.0%}",
            f"{row['published_worst']:+.0%}", f"{row['calibrated_median']:.0%}", f"{row['calibrated_worst']:+.0%}",
        )
        for row in _summary(verdict)
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


def _print_families(console: Console, found: Sequence[Family]) -> None:
    """Print how good the theory is, apart for rows that a constant was fitted on and rows that none was."""
    from tflabench.theory.constants import FITTED

    def told(errors: Errors) -> str:
        return "-" if errors.median is None else f"{errors.median:.1%} {errors.worst:+.0%}"

    header = ("kernels", "fitted\non", "median,\nworst", "held\nout", "median,\nworst", "published,\nheld out")
    table = [
        (
            f"{row.gpu.split()[0]} {row.kernels.replace('unpipelined', 'mlstm_kernels')}", str(row.fitted.rows),
            told(row.fitted), str(row.held_out.rows), told(row.held_out), told(row.published),
        )
        for row in found
    ]  # fmt: skip
    console.print(filled_table(header, table))
    console.print(f"The calibrated model has one fitted constant, of {FITTED}; all other rows are held out.")
    console.print("Every constant and where it is from: tflabench model-error --constants")


def _print_fits(console: Console, found: Sequence[Crossed]) -> None:
    header = ("fitted on", "round trip", "judged on", "rows", "median", "worst")
    table = [
        (
            row.fitted_on, f"{row.round_trip_s * 1e6:.2f} us", row.judged_on, str(row.rows), f"{row.median:.1%}",
            f"{row.worst:+.0%}",
        )
        for row in found
    ]  # fmt: skip
    console.print(filled_table(header, table))


def _print_constants(as_json: bool) -> None:
    """Print a line a constant, by origin: what was fitted stands apart from what was counted."""
    from tflabench.theory.constants import CONSTANTS, RATES

    if as_json:
        print_json({"constants": [asdict(constant) for constant in (*RATES, *CONSTANTS)]})
        return
    by_origin: dict[str, list[str]] = {}
    for constant in (*RATES, *CONSTANTS):
        value = "of each GPU" if constant.value is None else f"{constant.value:g}"
        line = f"  {constant.name:22}{' '.join((value, constant.unit)):20}{constant.meaning}"
        by_origin.setdefault(constant.origin, []).append(line)
    for origin, lines in by_origin.items():
        print("\n".join((origin, *lines)))


def _draw_models(verdict: Verdict, out: Path, formats: Sequence[str]) -> None:
    from tflabench.figures import model_errors as model
    from tflabench.figures.files import write_figures

    for path in write_figures([model.errors(verdict), *model.breakdowns(verdict)], folder_to_write(out), formats):
        print(f"wrote {path}", file=sys.stderr)
