"""The measured rows that a figure of theory lays over: the kernels of one gate and pass at many chunk sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tflabench.figures.looks import looks
from tflabench.figures.model import Curve, Ink, Numbers
from tflabench.figures.quantities import Rows, drawable
from tflabench.implementations import registry
from tflabench.problem import Pass, Problem
from tflabench.theory import fused
from tflabench.theory.chunk_size import Tradeoff
from tflabench.theory.cost import Cost, Gate
from tflabench.theory.hardware import Gpu, described

PAPER = Problem(batch=8, heads=8, seq_len=8192, d_qk=256, d_hv=512)  # the 7B size of Figs. 17, 19 and 20
SIZE = ["batch", "heads", "seq_len", "d_qk", "d_hv"]


class Series(NamedTuple):
    """The rows of one implementation, by chunk size."""

    name: str
    title: str
    ink: Ink
    rows: Rows

    @property
    def sizes(self) -> np.ndarray:
        """Return the chunk sizes of the rows."""
        return self.rows["chunk_size"].to_numpy(float)

    @property
    def ms(self) -> np.ndarray:
        """Return the times of the rows in ms."""
        return self.rows["ms_median"].to_numpy(float)

    @property
    def best(self) -> int:
        """The index of the fastest row."""
        return int(np.argmin(self.ms))

    @property
    def chunkwise(self) -> bool:
        """Return whether the implementation has chunks."""
        return self.rows["formulation"].iloc[0] == "chunkwise"

    def curve(self, x: Numbers, y: Numbers) -> Curve:
        """Return the line through the values of the rows."""
        return Curve(self.title, x, y, self.ink, rows=[int(n) for n in self.rows.index], name=self.name)


@dataclass(frozen=True)
class Overlay:
    """Measured rows over the chunk size at one problem on one GPU.

    Attributes:
        problem: of the rows, without chunk size; the paper's where there are no rows.
        rows: of chunkwise and fused kernels of one gate and pass; None where there are none.
        gpu: that they ran on; None without rows.
        asked: whether there were rows to choose from.
    """

    problem: Problem
    rows: Rows | None = None
    gpu: Gpu | None = None
    asked: bool = False

    @classmethod
    def of(cls, rows: Rows | None, gate: Gate, pass_: Pass) -> Overlay:
        """Return the rows of the device and problem measured at the most chunk sizes; the paper's among equals.

        Plain PyTorch is left out: it is not the algorithm that is counted. Of several rows at one chunk size the last
        measured counts.

        Raises:
            InputError: those rows ran on a device without known ceilings.
        """
        problem = PAPER.with_(pass_=pass_)
        if rows is None:
            return cls(problem)
        own: Rows = drawable(rows)
        counted = np.array([_counts(name, gate) for name in own["implementation"]], dtype=bool)
        own = own[(own["status"] == "ok") & (own["pass"] == pass_) & own["chunk_size"].notna() & counted]
        if own.empty:
            return cls(problem, asked=True)
        part = max((part for _, part in own.groupby(["device", *SIZE, "dtype"])), key=_richness)
        part = part.sort_values("started_at").drop_duplicates(["implementation", "chunk_size"], keep="last")
        first = part.iloc[0]
        problem = Problem(*(int(first[column]) for column in SIZE), dtype=first["dtype"], pass_=pass_)
        return cls(problem, part.sort_values("chunk_size"), described(first["device"], first["dtype"]), True)

    def series(self) -> list[Series]:
        """Return the rows by implementation, without the gate in titles: a figure has one."""
        if self.rows is None:
            return []
        gate = f"mLSTM{self.rows['gate'].iloc[0]} "  # of GLA there is one kernel
        return [
            Series(name, look.title.replace(gate, ""), look.ink, self.rows[self.rows["implementation"] == name])
            for name, look in looks(self.rows).items()
        ]

    def cost(self, own: Series, tradeoff: Tradeoff) -> Cost:
        """Return FLOPs and bytes of rows, each counted as what it runs: chunkwise, or fused."""
        if own.chunkwise:
            return tradeoff.cost(own.sizes)
        counts = [fused.cost(self.problem, tradeoff.gate, int(size)) for size in own.sizes]
        return Cost(np.array([count.flops for count in counts]), np.array([count.bytes for count in counts]))

    @property
    def setting(self) -> str:
        """Return the problem in words."""
        p = self.problem
        heads = f"{p.heads} head{'s' if p.heads > 1 else ''}"
        return f"T = {p.seq_len}, batch {p.batch}, {heads}, d_qk = {p.d_qk}, d_hv = {p.d_hv}, {p.dtype}"

    @property
    def origin(self) -> list[str]:
        """Return where the rows come from, or that there are none, as lines of a caption."""
        if self.rows is None:
            return ["The rows to be laid over hold none of these kernels, gate and pass."] if self.asked else []
        days = sorted({str(started)[:10] for started in self.rows["started_at"]})
        when = " to ".join(dict.fromkeys((days[0], days[-1])))
        return [f"Measured on {self.rows['device'].iloc[0]}, {when}."]


def _counts(name: str, gate: Gate) -> bool:
    """Return whether an implementation is a kernel of this gate that the model counts."""
    impl = registry.find(name)
    if impl is None:
        return False
    return impl.operation == "gla" and impl.chunked if gate == "gla" else impl.gate == gate and bool(impl.modelled)


def _richness(part: Rows) -> tuple[int, bool, float]:
    """Rank the rows of one device and problem: chunk sizes, then the paper's problem, then time."""
    found = tuple(part[column].iloc[0] for column in SIZE)
    paper = tuple(getattr(PAPER, column) for column in SIZE)
    return part["chunk_size"].nunique(), found == paper, part["ms_median"].sum()
