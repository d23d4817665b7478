"""Requests for sweeps, and the selections that follow from them before anything runs. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tflabench.bench.protocol import PAPER, PROTOCOLS, TIMES, Protocol
from tflabench.implementations.registry import nearest
from tflabench.problem import DeviceKind, InputError, one_of
from tflabench.selection.axes import Values
from tflabench.selection.points import Comparison, Point, comparisons, select_points
from tflabench.selection.presets import Preset, load_preset


@dataclass(frozen=True)
class Selection:
    """The points of a sweep, as comparisons too, and the protocol to measure them by."""

    preset: Preset
    points: list[Point]
    comparisons: list[Comparison]
    protocol: Protocol


@dataclass(frozen=True)
class Request:
    """A selection of what to measure.

    Attributes:
        preset: as `presets.load_preset` takes it.
        axes: those that replace the preset's.
        patterns: of implementations; None for those of the preset and all plugged in.
        paper_protocol: whether to take exactly the warm-ups and samples of the paper.
        verify_s: seconds of the correctness gate; None for the protocol's.
        times: as `Protocol.times`; None for the preset's.
        locked_mhz: as `Protocol.locked_mhz`.
    """

    preset: str = "quick"
    axes: Mapping[str, Values] = field(default_factory=dict[str, Values])
    patterns: Sequence[str] | None = None
    paper_protocol: bool = False
    verify_s: float | None = None
    times: Sequence[str] | None = None
    locked_mhz: float | None = None

    def select(self, kind: DeviceKind) -> Selection:
        """Return the points and the protocol on a kind of device.

        Raises:
            InputError: no such preset, a preset with an unknown protocol, or nothing to run (see `select_points`).
        """
        preset = load_preset(self.preset)
        points = select_points(preset, self.axes, self.patterns, kind)
        name = preset.protocol.get(kind, "standard")
        if name not in PROTOCOLS:
            raise InputError(f"preset {self.preset} has protocol {name!r}; {nearest(str(name), PROTOCOLS)}")
        times = self.times or preset.times
        for each in times:
            one_of("--times", each, TIMES)
        if "cold" not in times:
            raise InputError(f"--times is {','.join(times)}: it must have cold, which ratios are taken of")
        protocol = (PAPER if self.paper_protocol else PROTOCOLS[name]).with_(
            verify_s=self.verify_s, times=tuple(times), locked_mhz=self.locked_mhz
        )
        return Selection(preset, points, comparisons(points), protocol)
