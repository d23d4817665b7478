"""The tables that stand at the foot of a terminal while a sweep runs, on one device or on several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.text import Text

from tflabench.cli.common.console import progress_bar
from tflabench.conclusions.tables import plain
from tflabench.rows.labels import PASS_TITLES

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from tflabench.bench.protocol import Protocol
    from tflabench.bench.several.driver import Overview, Running
    from tflabench.bench.standing import Compiling, Standing, Work
    from tflabench.selection.points import Point

REFRESH_HZ = 2  # drawing costs this process little, and the processes that measure nothing
MOST_COMPILING = 3
VERBS = {"starting": "starting", "preparing": "preparing", "sampling": "timing"}


def is_watched(note: Console) -> bool:
    """Return whether a person sees a console: it is a terminal whose cursor can be moved."""
    return note.file.isatty() and note.is_interactive


class ProgressBar:
    """Shows a bar and the time left, as long as the block lasts.

    Args:
        note: what it is printed on.
        seconds: about how long all of it takes.

    Attributes:
        watch: takes where the sweep stands; None where that is not shown.
    """

    watch: Callable[[Standing], None] | None = None

    def __init__(self, note: Console, seconds: float) -> None:
        self._bar = progress_bar(note)
        self._task = self._bar.add_task("", total=seconds)

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def advance(self, seconds: float) -> None:
        """Count a point as done whose expected time was this many seconds."""
        self._bar.advance(self._task, seconds)


class LiveTable(ProgressBar):
    """Shows where a sweep stands, above a bar; at its end nothing of it is left on the terminal.

    Args:
        note: a terminal.
        seconds: about how long all of it takes.
        protocol: how many rounds a comparison takes.
    """

    def __init__(self, note: Console, seconds: float, protocol: Protocol) -> None:
        super().__init__(note, seconds)
        self.watch = self._see
        self._note, self._protocol = note, protocol
        self._standing: Standing | None = None
        self._live = Live(console=note, refresh_per_second=REFRESH_HZ, transient=True, get_renderable=self._table)

    def __enter__(self) -> LiveTable:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def _see(self, standing: Standing) -> None:
        first, self._standing = self._standing is None, standing  # the thread that draws reads it
        if first:  # a short comparison may close before that thread's next turn
            self._live.refresh()

    def _table(self) -> RenderableType:
        width = self._note.width
        if self._standing is None:
            return Group(_cut("The worker starts.", width), self._bar)
        return Group(*standing_lines(self._standing, self._protocol, width), self._bar)


class SeveralTable(ProgressBar):
    """Shows what each of several devices is at, a line each, above a bar; nothing of it is left at the end.

    Args:
        note: a terminal.
        seconds: about how long all of it takes.
        protocol: how many rounds a comparison takes.
    """

    def __init__(self, note: Console, seconds: float, protocol: Protocol) -> None:
        super().__init__(note, seconds)
        self._note, self._protocol = note, protocol
        self._overview: Overview | None = None
        self._live = Live(console=note, refresh_per_second=REFRESH_HZ, transient=True, get_renderable=self._table)

    def __enter__(self) -> SeveralTable:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def see(self, overview: Overview) -> None:
        """Take where the sweep stands; the thread that draws reads it."""
        self._overview = overview

    def _table(self) -> RenderableType:
        width = self._note.width
        if self._overview is None:
            return Group(_cut("The first tasks start.", width), self._bar)
        return Group(*overview_lines(self._overview, self._protocol, width), self._bar)


def overview_lines(overview: Overview, protocol: Protocol, width: int) -> list[Text]:
    """Return what the live table of several devices says: counts of points, then a line a device.

    Lines but for the first are cut to `width` characters.
    """
    counts = {
        "timed": f"{overview.timed} of {overview.points}",
        "failed": str(overview.failed),
        "refused": str(overview.refused),
        "comparisons closed": f"{overview.closed} of {overview.comparisons}",
    }
    lines = [f"{running.place}: {_at(running, overview.comparisons, protocol)}" for running in overview.running]
    return [_counted(counts), *(_cut(line, width) for line in lines)]


def _at(running: Running, comparisons: int, protocol: Protocol) -> str:
    """Return what a device is at."""
    working = running.standing.working if running.standing else ()
    if not working:
        return f"comparison {running.task.number} of {comparisons} starts"
    return _work(replace(working[0], comparison=running.task.number), comparisons, protocol)


def standing_lines(standing: Standing, protocol: Protocol, width: int) -> list[Text]:
    """Return what the live table says: counts of points, what is measured, what is compiled.

    Lines but for the first are cut to `width` characters.
    """
    lines = [_work(work, standing.comparisons, protocol) for work in standing.working]
    if standing.compiling:
        lines.append(f"compiling {_compiling(standing.compiling)}")
    return [_counted(_counts(standing)), *(_cut(line, width) for line in lines)]


def _counts(standing: Standing) -> dict[str, str]:
    """Return the counts by title; without those of what this sweep does not do."""
    compiles = {"compiled": f"{standing.compiled} of {standing.compiles}", "compiling": str(len(standing.compiling))}
    tunes = {"tuned": f"{standing.tuned} of {standing.tunes}"}
    return {
        "timed": f"{standing.timed} of {standing.points}",
        "failed": str(standing.failed),
        **(compiles if standing.compiles else {}),
        **(tunes if standing.tunes else {}),
        "refused": str(standing.refused),
        "comparisons closed": f"{standing.closed} of {standing.comparisons}",
    }


def _work(work: Work, comparisons: int, protocol: Protocol) -> str:
    doing = VERBS.get(work.state, work.state)
    if work.state == "sampling":
        least, most = protocol.min_rounds, protocol.max_rounds
        doing += f" round {work.turn} of {least if least == most else f'{least} to {most}'},"
    return f"{doing} {_named(work.point)}, {_problem(work.point)}, comparison {work.comparison} of {comparisons}"


def _named(point: Point) -> str:
    chunk = point.problem.chunk_size
    return point.implementation.name + (f" (L={chunk})" if chunk else "")


def _problem(point: Point) -> str:
    problem = point.problem
    return f"{PASS_TITLES[problem.pass_]} T={problem.seq_len}"


def _compiling(compiling: Sequence[Compiling]) -> str:
    told = [f"{_named(one.point)} ({one.done} of {one.kernels} kernels)" for one in compiling[:MOST_COMPILING]]
    rest = len(compiling) - len(told)
    return ", ".join(told) + (f" and {rest} more" if rest else "")


def _counted(counts: dict[str, str]) -> Text:
    """Return counts in one line."""
    return Text(", ".join(f"{title} {value}" for title, value in counts.items()))


def _cut(line: str, width: int) -> Text:
    """Return a line of at most `width` characters, with an ellipsis where it was longer."""
    text = Text(plain(line), no_wrap=True)
    text.truncate(width, overflow="ellipsis")
    return text
