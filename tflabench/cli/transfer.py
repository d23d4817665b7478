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

MOST_VALUES = 400  # of one gate's grid: more is a slip
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
InputGate = Annotated[str, options.option(options.PROBLEM, "LOW:HIGH", "Range of the input gates i~.")]
ForgetGate = Annotated[str, options.option(options.PROBLEM, "LOW:HIGH", "Range of the forget gates f~.")]
SoftCap = Annotated[
    float | None,
    options.option(
        options.PROBLEM, "C", "Cap gates x to C tanh(x / C), as the paper's models at 15.", show_default="none"
    ),
]
Step = Annotated[float, options.option(options.PROBLEM, "X", "Distance of two gate values.")]
Seed = Annotated[int, options.option(options.PROBLEM, "N", "Seed of q, k and v.", min=0, max=2**32 - 1)]


@app.command("transfer")
def transfer(  # noqa: PLR0913  options
    figure: Figures = "3,6,7",
    eps: Eps = None,
    norm: Norm = "rms",
    soft_cap: SoftCap = None,
    input_gate: InputGate = "-12:8",
    forget_gate: ForgetGate = "-5:12",
    step: Step = 0.25,
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
    given = None if eps is None else tuple(dict.fromkeys(_number("eps", word) for word in options.words(eps)))
    experiment = Experiment(
        input_gates=_grid("input_gate", input_gate, step),
        forget_gates=_grid("forget_gate", forget_gate, step),
        seq_len=seq_len,
        d_qk=d_qk,
        d_hv=d_hv,
        norm=norm,  # type: ignore[arg-type]
        seed=seed,
        soft_cap=soft_cap,
    )
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
    from tflabench.theory.transfer import DEFAULT_BIAS, gain_at, half_gain

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
            "gain_at_default_bias": gain_at(DEFAULT_BIAS, experiment.input_gates, after[:, column]),
            "half_gain_input_gate": half_gain(experiment.input_gates, after[:, column]),
        }
        for row in maps
        for eps, after in row.after.items()
    ]


def _grid(name: str, text: str, step: float) -> tuple[float, ...]:
    """Return the values of LOW:HIGH, both ends included, `step` apart."""
    low_text, colon, high_text = text.partition(":")
    if not colon:
        raise InputError(f"{name} is {text!r}: it must be LOW:HIGH, such as -12:8")
    low, high = _number(name, low_text), _number(name, high_text)
    if not low < high:
        raise InputError(f"{name} is {text!r}: its first value must be less than its second")
    if not 0 < step <= (high - low):
        raise InputError(f"step is {step:g}: it must be more than 0 and at most the range of {name}, {high - low:g}")
    count = round((high - low) / step) + 1
    if count > MOST_VALUES:
        raise InputError(f"step is {step:g}: it makes {count} values of {name}, and there may be {MOST_VALUES}")
    return tuple(low + (high - low) * n / (count - 1) for n in range(count))


def _number(name: str, text: str) -> float:
    import math

    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{name} is {text.strip()!r}: it must be a number")
    return value
