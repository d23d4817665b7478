"""A sweep as people watch it: lines as rows come, and at the foot of a terminal what is going on, above a bar."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from tflabench.bench.sweep import Listener
from tflabench.conclusions import summary
from tflabench.problem import PASS_TITLES

if TYPE_CHECKING:
    from tflabench.bench import sweep
    from tflabench.bench.devices import Fleet
    from tflabench.bench.events import Task, Work
    from tflabench.bench.protocol import Protocol
    from tflabench.rows.schema import Row
    from tflabench.selection.points import Point

REFRESH_HZ = 2  # drawing costs this process little, and the processes that measure nothing
MOST_COMPILING = 3


class ProgressPrinter(Listener):
    """Prints what a sweep says and measures on stderr.

    Where that is a terminal, a table shows what is going on, and at the end nothing of it is left; rows have a line
    once they are final, or have failed. Elsewhere every row has one. A closed comparison has a line in any case.
    """

    def __init__(self) -> None:
        self._console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
        self._watched = self._console.file.isatty() and self._console.is_interactive
        self._progress: sweep.Progress | None = None  # the thread that draws reads it
        self._seconds: Mapping[str, float] = {}
        self._sizes: dict[str, int] = {}  # of the comparison of each point
        self._closing: dict[str | None, list[Row]] = {}  # final rows of comparisons of which not all are
        self._several = False

    def note(self, text: str, minor: bool = False) -> None:
        """Print a line."""
        self._console.print(text, style="dim" if minor else None)

    def begin(self, tasks: Sequence[Task], seconds: Mapping[str, float], fleet: Fleet, protocol: Protocol) -> None:
        """Start the bar, and on a terminal the table."""
        columns = (BarColumn(), TaskProgressColumn(), TextColumn("time left"), TimeRemainingColumn())
        self._bar = Progress(*columns, console=self._console, transient=True)
        self._shown: Live | Progress = self._bar
        if self._watched:
            self._shown = Live(
                console=self._console, refresh_per_second=REFRESH_HZ, transient=True, get_renderable=self._table
            )
        self._several, self._protocol = fleet.count > 1, protocol
        self._seconds = {point: point_seconds / fleet.count for point, point_seconds in seconds.items()}
        self._sizes = {point.id: len(task.comparison.points) for task in tasks for point in task.comparison.points}
        total = sum(self._seconds[point.id] for task in tasks for point in task.comparison.points)
        self._task = self._bar.add_task("", total=total)
        self._shown.start()

    def end(self) -> None:
        """Take the bar and the table away."""
        self._shown.stop()
        self._progress = None

    def progress(self, progress: sweep.Progress) -> None:
        """Show how far the sweep is."""
        first, self._progress = self._progress is None, progress
        if first and isinstance(self._shown, Live):  # a short comparison may close before the next turn of its thread
            self._shown.refresh()

    def row(self, row: Row) -> None:
        """Print a row, or the comparison of which it is the last final one."""
        if not row.closed:
            if row.ms_median is None or not self._watched:
                self._print(row, summary.line(row), "yellow" if row.ms_median is None else "")
            return
        self._bar.advance(self._task, self._seconds[row.point])
        rows = self._closing.setdefault(row.comparison_id, [])
        rows.append(row)
        if len(rows) < self._sizes[row.point]:
            return
        del self._closing[row.comparison_id]
        if line := summary.closing(rows):
            self._print(row, line, "bold")
            return
        for final in rows:
            if self._watched and final.ms_median is not None:
                self._print(final, summary.line(final), "")

    def _print(self, row: Row, line: str, style: str) -> None:
        if self._several:
            line = f"{line}  ({f'{row.node} {row.gpu_uuid[:12]}' if row.gpu_uuid else row.node})"
        self._console.print(Text(line, style))  # a style of the whole output would colour the table too

    def _table(self) -> RenderableType:
        lines = ["The sweep starts."] if self._progress is None else self._lines(self._progress)
        return Group(*(Text(line, no_wrap=True, overflow="ellipsis") for line in lines), self._bar)

    def _lines(self, progress: sweep.Progress) -> Iterator[str]:
        yield (
            f"{progress.timed} of {progress.points} timed, {progress.failed} failed, {progress.refused} refused; "
            f"{progress.closed} of {progress.comparisons} comparisons closed"
        )
        for station, activity in progress.activities:
            works = [_work(work, progress.comparisons, self._protocol) for work in activity.working]
            if self._several:
                yield f"{station}: {works[0] if works else 'starting'}"
            else:
                yield from works
                points = activity.compiling[:MOST_COMPILING]
                more = len(activity.compiling) - len(points)
                if points:
                    yield f"compiling {', '.join(map(_label, points))}" + (f" and {more} more" if more else "")


def _work(work: Work, comparisons: int, protocol: Protocol) -> str:
    least, most = protocol.min_rounds, protocol.max_rounds
    rounds = (
        f" round {work.turn} of {least if least == most else f'{least} to {most}'}," if work.doing == "timing" else ""
    )
    size = f"{PASS_TITLES[work.point.problem.pass_]} T={work.point.problem.seq_len}"
    return f"{work.doing}{rounds} {_label(work.point)}, {size}, comparison {work.comparison} of {comparisons}"


def _label(point: Point) -> str:
    chunk = point.problem.chunk_size
    return point.implementation.name + (f" (L={chunk})" if chunk else "")
