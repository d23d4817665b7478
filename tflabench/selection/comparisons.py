"""Comparisons: which points are measured together, in alternating rounds on one GPU, so that their ratios count."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tflabench.implementations import registry
from tflabench.problem import Problem
from tflabench.selection.points import Point

Cut = tuple[int, int, int, str | None]


@dataclass(frozen=True)
class Comparison:
    """All implementations, and chunk sizes, of one batch, sequence length, embedding, dtype, inputs and pass.

    Attributes:
        points: in the order in which they take their turn in a round; at least one.
    """

    points: tuple[Point, ...]

    @property
    def problem(self) -> Problem:
        """The size of the first point; the others may have other heads and chunk sizes."""
        return self.points[0].problem

    @property
    def title(self) -> str:
        """Return in words what it is about: "fwbw B=16 T=4096 embedding 4096 bfloat16"."""
        p = self.problem
        width = self.points[0].implementation.width or p.heads * p.d_hv
        return f"{p.pass_} B={p.batch} T={p.seq_len} embedding {width} {p.dtype}"


def comparisons(points: Iterable[Point]) -> list[Comparison]:
    """Group points into comparisons, in the order in which the first point of each stands; ours come first in each.

    Heads and strengths of gates may differ within one: attention with 32 heads of 128 meets an mLSTM with 16 of
    128/256, and a GLA whose gates are weaker. Models of one width meet, whatever their heads. Where an implementation
    stands at several of these, each is a comparison of its own.
    """
    together: dict[tuple[object, ...], list[Point]] = {}
    for point in points:
        p, width = point.problem, point.implementation.width
        sizes = (width,) if width else (p.heads * p.d_hv, p.group)
        key = (p.batch, p.seq_len, *sizes, p.dtype, p.inputs, p.seed, p.pass_)
        together.setdefault(key, []).append(point)
    rank = {impl.name: place for place, impl in enumerate(registry.implementations())}
    return [
        Comparison(tuple(sorted(part, key=lambda point: rank[point.implementation.name])))
        for group in together.values()
        for part in _by_cut(group)
    ]


def _by_cut(group: Sequence[Point]) -> list[list[Point]]:
    of_implementation: dict[str, set[Cut]] = {}
    of_cut: dict[Cut, list[Point]] = {}
    for point in group:
        p = point.problem
        cut = (p.heads, p.d_qk, p.d_hv, p.gates)
        of_implementation.setdefault(point.implementation.name, set()).add(cut)
        of_cut.setdefault(cut, []).append(point)
    if max(map(len, of_implementation.values())) == 1:
        return [list(group)]
    return list(of_cut.values())
