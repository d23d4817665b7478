"""The measured rows that a figure of theory lays over: one kernel family, gate and pass at many chunk sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.lines import Line2D

from tflabench.figures.quantities import Rows, drawable
from tflabench.figures.style import looks
from tflabench.implementations.registry import modelled
from tflabench.problem import Pass, Problem
from tflabench.theory import fused
from tflabench.theory.chunk_size import Tradeoff
from tflabench.theory.cost import Cost, Gate
from tflabench.theory.hardware import Gpu, described

PAPER = Problem(batch=8, heads=8, seq_len=8192, d_qk=256, d_hv=512)  # the 7B size of Figs. 17, 19 and 20

BACKWARD_NOTE = "The paper counts forward passes; the backward is derived from its section B.3 (tflabench.theory.cost)."


@dataclass(frozen=True)
class Overlay:
    """Measured rows over the chunk size at one problem on one GPU.

    Attributes:
        problem: of the rows, without chunk size; the paper's where there are no rows.
        rows: rows of chunkwise and fused kernels of one gate and pass; empty without any.
        gpu: that they ran on, None without rows.
        asked: whether there were rows to choose from.
    """

    problem: Problem
    rows: Rows
    gpu: Gpu | None
    asked: bool = False

    @classmethod
    def of(cls, rows: Rows | None, gate: Gate, pass_: Pass) -> Overlay:
        """The rows of the device and problem measured at the most chunk sizes, the paper's first among equals.

        Plain PyTorch is left out: it is not the algorithm that is counted.

        Raises:
            InputError: those rows ran on a device without known ceilings.
        """
        problem = PAPER.with_(pass_=pass_)
        if rows is None:
            return cls(problem, None, None)
        own: Rows = drawable(rows)
        kernels = [modelled(name) is not None for name in own["implementation"]]
        own = own[
            (own["status"] == "ok")
            & (own["gate"] == gate)
            & (own["pass"] == pass_)
            & own["chunk_size"].notna()
            & np.array(kernels, dtype=bool)
        ]
        if own.empty:
            return cls(problem, None, None, asked=True)
        size = ["batch", "heads", "seq_len", "d_qk", "d_hv", "dtype"]

        def richness(part: Rows) -> tuple[int, bool, float]:
            found = tuple(part[column].iloc[0] for column in size[:5])
            paper = (PAPER.batch, PAPER.heads, PAPER.seq_len, PAPER.d_qk, PAPER.d_hv)
            return part["chunk_size"].nunique(), found == paper, part["ms_median"].sum()

        part = max((part for _, part in own.groupby(["device", *size])), key=richness)
        first = part.iloc[0]
        problem = Problem(*(int(first[column]) for column in size[:5]), dtype=first["dtype"], pass_=pass_)
        return cls(problem, part, described(first["device"], first["dtype"]))

    def series(self) -> list[tuple[Any, Rows]]:
        """(look, rows sorted by chunk size) of every implementation."""
        if self.rows is None:
            return []
        own = {name: part.sort_values("chunk_size") for name, part in self.rows.groupby("implementation")}
        return [(look, own[name]) for name, look in looks(self.rows).items()]

    def cost(self, gate: Gate, own: Rows, tradeoff: Tradeoff) -> Cost:
        """FLOPs and bytes of rows of one implementation, each counted as what it runs: chunkwise, or fused."""
        if own["formulation"].iloc[0] == "chunkwise":
            return tradeoff.cost(own["chunk_size"].to_numpy())
        counts = [fused.cost(self.problem, gate, int(size)) for size in own["chunk_size"]]
        return Cost(np.array([count.flops for count in counts]), np.array([count.bytes for count in counts]))

    def title(self) -> str:
        p = self.problem
        dims = f"$d_{{qk}}$ = {p.d_qk}, $d_{{hv}}$ = {p.d_hv}"
        return f"T = {p.seq_len}, batch {p.batch}, {p.heads} heads, {dims}, {p.dtype}"

    def handles(self) -> list[Line2D]:
        return [Line2D([], [], label=f"{look.title}, measured", **look.line()) for look, _ in self.series()]

    def notes(self, pass_: Pass) -> list[str]:
        found = backward_notes(pass_)
        if self.gpu is None:
            return (
                [*found, "The rows to be laid over hold none of these kernels, gate and pass."] if self.asked else found
            )
        days = sorted({str(started)[:10] for started in self.rows["started_at"]})
        when = " to ".join(dict.fromkeys((days[0], days[-1])))
        return [*found, f"Measured on {self.rows['device'].iloc[0]}, {when}."]


def backward_notes(pass_: Pass) -> list[str]:
    """Return the note on what the paper does not count, for a figure with a backward pass."""
    return [BACKWARD_NOTE] if pass_ == "fwbw" else []
