"""The command of the transfer-behaviour analysis (paper, section 4.2 and App. D.2): transfer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tflabench.cli.common import app, options
from tflabench.cli.common.console import RenderableType, Unwrapped, emit
from tflabench.cli.common.paths import folder_to_write, out_folder
from tflabench.conclusions.tables import FittedTable, TableColumn
from tflabench.problem import InputError, one_of

if TYPE_CHECKING:
    from tflabench.theory.transfer import Experiment, Gains

AT_FORGET_GATE = 4.5  # where the table reads the maps: the paper initialises f~ within [3, 6]


FIGURE = "Draw any of the paper's figures 3, 6 and 7, comma-separated."
Figures = Annotated[str, options.option(None, "FIGURES", FIGURE, "--figure")]
Eps = Annotated[
    str | None,
    options.option(
        options.PROBLEM,
        "VALUES",
        "Epsilon of the norm layer, comma-separated.",
        show_default="1e-6 in figure 3, else 1e-2,1e-6,1e-8",
    ),
]
Norm = Annotated[str, options.option(options.PROBLEM, "NORM", "Norm layer: rms or layer.")]
SoftCap = Annotated[
    float | None,
    options.option(
        options.PROBLEM, "C", "Cap gates x to C tanh(x / C), as the paper's models at 15.", show_default="none"
    ),
]
Seed = Annotated[int, options.option(options.PROBLEM, "N", "Seed of q, k and v.", min=0, max=2**32 - 1)]


@app.command("transfer")
def transfer(  # noqa: PLR0913  options
    figure: Figures = "3,6,7",
    eps: Eps = None,
    norm: Norm = "rms",
    soft_cap: SoftCap = None,
    seq_len: options.SeqLen = 512,
    d_qk: options.Dqk = 128,
    d_hv: options.Dhv = 128,
    seed: Seed = 0,
    out: Annotated[Path, out_folder()] = Path("transfer"),
    format_: options.Formats = "png",
    as_json: options.Json = False,
) -> None:
    """Draw how gates, normaliser and norm layer scale a signal (the paper's Figs. 3, 6 and 7).

    Heat maps show the gain max|h| / max|v| before and after the norm, for mLSTMexp and mLSTMsig, computed on the CPU in
    float64.
    """
    from tflabench.figures.files import check_formats, write_figures
    from tflabench.figures.gain_maps import heat_maps
    from tflabench.theory.transfer import DEFAULT_EPS, FIGURES, PAPER_EPS, Experiment, gains

    names = [one_of("figure", name, tuple(FIGURES)) for name in options.words(figure)]
    check_formats(formats := options.words(format_))
    try:
        given = None if eps is None else tuple(dict.fromkeys(map(float, options.words(eps))))
    except ValueError:
        raise InputError(f"eps is {eps!r}: it must be numbers such as 1e-6,1e-8") from None
    sizes = {"seq_len": seq_len, "d_qk": d_qk, "d_hv": d_hv}
    experiment = Experiment(**sizes, norm=norm, seed=seed, soft_cap=soft_cap)  # type: ignore[arg-type]
    out = folder_to_write(out)
    maps: dict[str, list[Gains]] = {}
    for name in names:
        chosen = given or ((DEFAULT_EPS,) if name == "3" else PAPER_EPS)
        maps[name] = gains(experiment, FIGURES[name], chosen)
    drawn = (heat_maps(name, experiment, maps[name]) for name in names)
    files = [str(path) for path in write_figures(drawn, out, formats)]
    rows = [row for name in names for row in _summary(name, experiment, maps[name])]
    emit({"files": files, "rows": rows}, _text(rows, files), as_json)


def _text(rows: Sequence[dict[str, Any]], files: Sequence[str]) -> Iterator[RenderableType]:
    """Yield a line a map, what its last column means, and the files written."""
    columns = [
        TableColumn("figure", "figure", ">"),
        TableColumn("gate", "gate"),
        TableColumn("normaliser n", "normalizer"),
        TableColumn("eps", "eps", "g"),
        TableColumn("gain before", lambda row: "{:.2g} to {:.2g}".format(*row["before"]), ">", drop=1),
        TableColumn("gain after", lambda row: "{:.2f} to {:.2f}".format(*row["after"]), ">", drop=2),
        TableColumn("at -10", "gain_at_default_bias", ".2f"),
        TableColumn("i~ at half", "half_gain_input_gate", ".1f"),
    ]
    yield FittedTable(columns, rows)
    yield (
        f"At f~ = {rows[0]['forget_gate']:g}. At -10: the gain after the norm where i~ = -10. "
        "i~ at half: where it passes half its largest; - where it never lies below."
    )
    yield from map(Unwrapped, files)


def _summary(name: str, experiment: Experiment, maps: Sequence[Gains]) -> list[dict[str, Any]]:
    """Return what the maps show at the forget gate nearest AT_FORGET_GATE, a row a normaliser and eps."""
    import numpy as np

    from tflabench.theory.transfer import DEFAULT_BIAS, half_gain

    forget = min(experiment.forget_gates, key=lambda f: abs(f - AT_FORGET_GATE))
    column = experiment.forget_gates.index(forget)
    return [
        {
            "figure": name,
            "gate": row.gate,
            "normalizer": row.normalizer.name,
            "eps": eps,
            "forget_gate": forget,
            "before": [float(end) for end in (row.before[:, column].min(), row.before[:, column].max())],
            "after": [float(end) for end in (after[:, column].min(), after[:, column].max())],
            "gain_at_default_bias": float(np.interp(DEFAULT_BIAS, experiment.input_gates, after[:, column])),
            "half_gain_input_gate": half_gain(experiment.input_gates, after[:, column]),
        }
        for row in maps
        for eps, after in row.after.items()
    ]
