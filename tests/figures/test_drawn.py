"""Every kind of figure is drawn by matplotlib, with the name of each series in it and within the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from figure_cases import gains, tradeoff
from figure_rows import SWEEPS, made, row
from matplotlib.text import Text

from tflabench.figures import gain_maps, paper
from tflabench.figures.matplotlib_renderer import draw
from tflabench.figures.model import Bars, Curve, Figure, Rule
from tflabench.figures.roofline import Roofline
from tflabench.theory.hardware import find


def roofline() -> Figure:
    costs = {int(size): tradeoff().cost(int(size)) for size in np.geomspace(16, 8192, 5)}
    return Roofline("mLSTMsig forward: d_qk 256", [find("A100"), find("B200")], costs).figure


LONG = "xLSTM 1.4B, mlstm_kernels_limit, a layer"
TITLE = "forward + backward: Gated DeltaNet fused for Hopper 2.7x faster than FlashInfer"


def titled() -> Figure:
    """Return bars of two passes, each with a title of several lines."""
    rows = [row(name, **{"pass": pass_}) for pass_ in ("fw", "fwbw") for name in ("tfla_sig_xl", "mamba2")]
    figure = next(iter(made(rows).values()))
    return replace(figure, panels=tuple(replace(panel, title=TITLE) for panel in figure.panels))


FIGURES: dict[str, Callable[[], Figure]] = {
    **{name: partial(figure, "sig", "fw") for name, figure in paper.FIGURES.items()},
    "roofline": roofline,
    "transfer": lambda: gain_maps.heat_maps("3", *gains("3")),
    **{name: partial(lambda name: next(iter(made(SWEEPS[name]).values())), name) for name in ("many", "one_point")},
    "long labels": lambda: next(iter(made([row(), row("mine", title=LONG), row("sdpa_flash")]).values())),
    "long titles": titled,
    "long words": lambda: made([row(), row("mine", title=LONG, noisy=True, status="wrong")])["runtime-seq_len"],
    "gates": lambda: made(SWEEPS["gates"], ["gates"])["gates-kda"],
}


@pytest.mark.parametrize("name", FIGURES)
def test_every_series_is_named_and_the_figure_within_its_page(name):
    figure = FIGURES[name]()
    drawing = draw(figure)
    texts = [text for text in drawing.findobj(Text) if text.get_visible() and text.get_text().strip()]
    words = " ".join(" ".join(text.get_text().split()) for text in texts)
    for panel in figure.panels:
        labels = [item.label for item in panel.items if isinstance(item, (Curve, Rule)) and item.label]
        assert [label for label in labels if " ".join(label.split())[:15].strip() not in words] == []
        bars = [label for item in panel.items if isinstance(item, Bars) for label in item.labels]
        assert [label for label in bars if " ".join(label.split()) not in words] == []
        assert drawing.bbox.height > 72 * figure.height
    boxes = [text.get_window_extent() for legend in drawing.legends for text in legend.get_texts()]
    boxes += [
        text.get_window_extent() for ax in drawing.axes if (legend := ax.get_legend()) for text in legend.get_texts()
    ]
    boxes += [
        text.get_window_extent() for text in texts if text.get_text() in {ax.get_title("left") for ax in drawing.axes}
    ]
    words_of_bars = {
        word for panel in figure.panels for item in panel.items if isinstance(item, Bars) for word in item.texts
    }
    boxes += [text.get_window_extent() for text in texts if text.get_text() in words_of_bars]
    assert all(box.x0 >= 0 and box.x1 <= drawing.bbox.width + 1 for box in boxes)
    labels = [[label.get_window_extent() for label in ax.get_yticklabels() if label.get_text()] for ax in drawing.axes]
    assert not any(one.overlaps(other) for of_axis in labels for one, other in pairwise(of_axis))


def test_a_name_is_not_broken_at_its_hyphen():
    figure = next(iter(made(SWEEPS["one_point"]).values()))
    panels = [
        replace(panel, title="forward + backward: Mamba 2 fused for Hopper 1.75x faster than mamba-ssm")
        for panel in figure.panels
    ]
    figure = replace(figure, title=f"{'a' * 43} mamba-ssm", panels=tuple(panels))
    words = [text.get_text() for text in draw(figure).findobj(Text)]
    assert sum("mamba-ssm" in text for text in words) == 1 + len(panels)


def test_names_above_a_panel_do_not_meet():
    costs = {size: tradeoff().cost(size) for size in (16, 64, 256, 1024, 4096)}  # those of the command
    drawing = draw(Roofline("mLSTMsig forward", [find("H100")], costs).figure)
    texts = [text for text in drawing.findobj(Text) if text.get_text().replace("\u00a0", " ").startswith("L = ")]
    boxes = [text.get_window_extent() for text in texts]
    assert len(boxes) == 5
    assert not any(one.overlaps(other) for n, one in enumerate(boxes) for other in boxes[:n])
