"""The theoretical runtime over the chunk size, drawn in characters for a terminal."""

from __future__ import annotations

import numpy as np

from tflabench.theory.chunk_size import Tradeoff


def sketch(
    tradeoff: Tradeoff, recommended: int, *, width: int = 60, height: int = 9, ascii_only: bool = False
) -> list[str]:
    """Lines of text that show the upper time over L (log scale), the 5% band shaded, the recommended L marked below."""
    curve, shade, mark = ("*", ":", "^") if ascii_only else ("•", "░", "▲")
    sizes = tradeoff.sizes(width)
    times = tradeoff.time(sizes).upper * 1e3
    low, high = tradeoff.within()
    bottom, top = float(times.min()), min(float(times.max()), 4 * float(times.min()))
    # Beyond four times the best the curve leaves the sketch: the trough is what it is for.
    levels = np.round((times - bottom) / max(top - bottom, 1e-300) * (height - 1))
    lines = []
    for level in reversed(range(height)):
        cells = [
            curve if at == level else shade if low <= size <= high else " "
            for at, size in zip(levels, sizes, strict=True)
        ]
        value = bottom + (top - bottom) * level / (height - 1)
        label = f"{value:8.3g} ms" if level in (0, height - 1) else " " * 11
        lines.append(f"{label} |{''.join(cells)}".rstrip())
    ticks, labels = ["-"] * width, [" "] * (width + 6)
    for power in range(int(np.ceil(np.log2(sizes[0]))), int(np.log2(sizes[-1]) + 1e-9) + 1, 2):
        column = int(np.argmin(abs(sizes - 2.0**power)))
        ticks[column] = "+"
        labels[column : column + len(str(2**power))] = str(2**power)
    ticks[int(np.argmin(abs(sizes - recommended)))] = mark
    lines.append(" " * 11 + "+" + "".join(ticks))
    lines.append(" " * 12 + "".join(labels).rstrip() + "  L")
    return lines
