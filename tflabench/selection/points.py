"""Points: what is to be measured, an implementation at a problem size each; and comparisons of them. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from operator import itemgetter
from typing import Any

from tflabench.implementations import registry
from tflabench.implementations.adapter import Implementation
from tflabench.problem import DRAWN_GATES, PASSES, InputError, Problem, by_cut
from tflabench.selection.axes import ORDER, Values, overlay, resolve
from tflabench.selection.presets import Group, Preset


@dataclass(frozen=True)
class Point:
    """An implementation at a problem, which `id` names; without gates asked for, they are those of its family.

    `comparison` is that of its group in a preset.
    """

    implementation: Implementation
    problem: Problem
    comparison: str = field(default="", compare=False)
    id: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "problem", self.implementation.with_gates(self.problem))
        object.__setattr__(self, "id", point_id(self.implementation, self.problem))


def select_points(
    preset: Preset, overrides: Mapping[str, Values], patterns: Sequence[str] | None, device: str
) -> list[Point]:
    """Return the points to measure, each once: stage by stage, those of one problem size together.

    Args:
        overrides: axes that replace those of every group; sizes are measured in the order of their values, those of
            other axes from small to large.
        patterns: which implementations: those of the preset that match, or, where it names none of them, all that
            match, over the axes of its first group for their family; None for the preset's own and those plugged in.
            One that is plugged in runs over the axes of all groups whose implementations compute the same.
        device: "cuda" or "cpu": groups meant for the other are left out.

    Raises:
        InputError: nothing to run, a pattern that matches nothing, or axes that no problem satisfies.
    """
    groups = [group for group in preset.groups if group.device in (None, device)]
    stages = {stage: place for place, stage in enumerate(dict.fromkeys(group.stage for group in groups))}
    if not groups:
        raise InputError(f"preset {preset.name} has nothing to run on {device}: choose another --preset")
    points: dict[str, tuple[int, Point]] = {}
    for impl, claims in _chosen(groups, patterns).items():
        for group in claims:
            stage = stages[group.stage]
            axes = overlay(group.axes, overrides) | {axis: (value,) for axis, value in impl.sizes}
            for values in product(*axes.values()):
                problem = resolve(dict(zip(axes, values, strict=True)))
                problem = problem if impl.chunked else problem.with_(chunk_size=None)
                point = Point(impl, problem, group.comparison)
                points[point.id] = min(points.get(point.id, (stage, point)), (stage, point), key=itemgetter(0))
    if not points:
        for group in groups:
            for pattern in registry.split(group.impl):
                registry.select(pattern)  # which says where it matches nothing
        raise InputError(f"preset {preset.name} has no implementation to run on {device}: name one with --impl")
    for id_, (stage, point) in list(points.items()):
        usual = point.implementation.usual_chunk_size
        if point.implementation.chunked and point.problem.chunk_size is None and usual:  # the same call as with that
            same = point_id(point.implementation, point.problem.with_(chunk_size=usual(point.problem)))
            points[id_] = (min(stage, points.pop(same, (stage, point))[0]), point)
    rank = {impl.name: index for index, impl in enumerate(registry.implementations())}

    def place(entry: tuple[int, Point]) -> tuple[Any, ...]:
        stage, point = entry
        return (stage, _place(point.problem, overrides), rank[point.implementation.name])

    return [point for _, point in sorted(points.values(), key=place)]


def _chosen(groups: Sequence[Group], patterns: Sequence[str] | None) -> dict[Implementation, list[Group]]:
    """Return every implementation to run, with the groups whose axes it runs over."""
    claims = {impl: [group for group in groups if group.fits(impl)] for impl in registry.implementations()}

    def adopted(impl: Implementation) -> list[Group]:
        return [next((group for group in groups if impl.family in group.family), groups[0])]

    def computes(impl: Implementation) -> tuple[str | None, ...]:
        return impl.family, impl.gate, impl.operation

    for impl in registry.plugged():
        twins = [twin for twin in claims if computes(twin) == computes(impl)]
        alike = [group for group in groups if any(group in claims[twin] for twin in twins)]
        claims[impl] = claims[impl] or alike or adopted(impl)
    if patterns is None:
        return {impl: claim for impl, claim in claims.items() if claim}
    chosen: dict[Implementation, list[Group]] = {}
    for pattern in patterns:
        matching = registry.select(pattern)
        named = {impl: claims[impl] for impl in matching if claims[impl]}
        chosen |= named or {impl: adopted(impl) for impl in matching}
    return chosen


def _place(problem: Problem, given: Mapping[str, Values]) -> tuple[Any, ...]:
    """Return the place of a problem in a plan: axis by axis, in the order given, else from small to large."""
    p = problem
    values = {"tokens": p.tokens, "head_dim": p.d_hv, "embedding": p.heads * p.d_hv, **p.columns()}
    small_to_large = {**p.columns(), "pass": PASSES.index(p.pass_), "chunk_size": p.chunk_size or 0}
    small_to_large |= {"heads_qk": p.heads // p.group, "ranks": p.ranks or 1}
    small_to_large["gates"] = None  # families differ in their gates

    def place(axis: str) -> Any:
        if axis not in given:
            return small_to_large.get(axis)  # None, alike for all: what sets other axes has no order of its own
        return given[axis].index(values[axis]) if values[axis] in given[axis] else -1  # -1: it has no chunks

    return tuple(place(axis) for axis in ORDER)


def point_id(impl: Implementation, problem: Problem) -> str:
    """Return the identity of a point inside a results folder: its implementation, and all that was asked."""
    p = problem
    heads = f"H{p.heads}" if p.heads_qk is None else f"H{p.heads_qk}:{p.heads}"
    size = f"B{p.batch}/{heads}/T{p.seq_len}/qk{p.d_qk}/hv{p.d_hv}/L{p.chunk_size or 'auto'}"
    gates = "" if impl.with_gates(p).gates == DRAWN_GATES.get(p.inputs) else f"/{impl.with_gates(p).gates}"
    ranks = "" if p.ranks is None else f"/ranks{p.ranks}"
    return f"{impl.name}/{p.pass_}/{size}/{p.dtype}/{p.inputs}{p.seed}{gates}{ranks}"


@dataclass(frozen=True)
class Comparison:
    """All implementations, and chunk sizes, of one batch, sequence length, embedding, dtype, inputs and pass.

    Attributes:
        points: in the order in which they take their turn in a round; at least one.
    """

    points: tuple[Point, ...]

    @property
    def problem(self) -> Problem:
        """Return the size of the first point; the others may have other heads and chunk sizes."""
        return self.points[0].problem

    @property
    def title(self) -> str:
        """Return in words what it is about: "fwbw B=16 T=4096 embedding 4096 bfloat16"."""
        p = self.problem
        width = self.points[0].implementation.width or p.heads * p.d_hv
        return f"{self.points[0].comparison} {p.pass_} B={p.batch} T={p.seq_len} embedding {width} {p.dtype}".lstrip()


def comparisons(points: Iterable[Point]) -> list[Comparison]:
    """Group points into comparisons, in the order in which the first point of each stands; ours come first in each.

    Heads and strengths of gates may differ within one: attention with 32 heads of 128 meets an mLSTM with 16 of
    128/256, and a GLA whose gates are weaker. Models of one width meet, whatever their heads. Where an implementation
    stands at several of these, each is a comparison of its own. Groups of a preset may be kept apart.
    """
    together: dict[tuple[object, ...], list[Point]] = {}
    for point in points:
        p, width = point.problem, point.implementation.width
        sizes = (width,) if width else (p.heads * p.d_hv, p.group)
        key = (point.comparison, p.batch, p.seq_len, *sizes, p.dtype, p.inputs, p.seed, p.pass_)
        together.setdefault(key, []).append(point)
    rank = {impl.name: place for place, impl in enumerate(registry.implementations())}
    return [
        Comparison(tuple(sorted(part, key=lambda point: rank[point.implementation.name])))
        for group in together.values()
        for of_heads in by_cut(group, lambda point: point.implementation.name, _heads)
        for part in by_cut(of_heads, lambda point: point.implementation.name, lambda point: point.problem.gates)
    ]


def _heads(point: Point) -> tuple[object, ...]:
    return point.problem.heads, point.problem.d_qk, point.problem.d_hv
