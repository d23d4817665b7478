"""Names of rows in text: the implementation, its size, its time."""

from __future__ import annotations

from tflabench.problem import DRAWN_GATES
from tflabench.rows.schema import Row

THROTTLED = "†"  # after a number; every page and table that has it says what it means


def label(row: Row) -> str:
    """Return an implementation as it ran: with its chunk size where it has one."""
    return row.implementation if row.chunk_size is None else f"{row.implementation} (L={row.chunk_size})"


def size(row: Row) -> str:
    """Return the size of a row's problem in words, with its gates where these are not usual."""
    ranks = "" if row.ranks is None else f" on {row.ranks} devices"
    gates = "" if row.gates in (None, DRAWN_GATES["normal"]) else f" {row.gates} gates"
    return f"B={row.batch} T={row.seq_len} heads {heads(row)}{ranks}{gates}"


def heads(row: Row) -> str:
    """Return number and dimensions of the heads: 8x256, or 8x128/256 where they differ."""
    heads = row.heads if row.heads_qk is None else f"{row.heads_qk}:{row.heads}"
    return f"{heads}x{row.d_hv}" if row.d_qk == row.d_hv else f"{heads}x{row.d_qk}/{row.d_hv}"


def mark(*rows: Row) -> str:
    """Return the mark of a number of which any row was measured while the GPU held its clock back; "" for others."""
    return THROTTLED if any(row.throttled for row in rows) else ""


def waits_for_host(row: Row) -> bool:
    """Return whether the host needs longer to enqueue a call than the GPU takes for it."""
    return row.status == "ok" and (row.host_ms or 0.0) > (row.ms_median or 0.0)


def on_datasheet(ceilings: str | None) -> bool:
    """Return whether a row's `ceilings` are a datasheet's, which a machine does not reach, and not measured."""
    return bool(ceilings) and ceilings.startswith("datasheet")


def percentages(row: Row) -> str:
    """Return the bounds as percentages of the time: "44% of the bound (own roofline 68%)".

    Without a formula for the bound the second stands alone.
    """
    roofline = [] if row.percent_of_own_roofline is None else [f"own roofline {row.percent_of_own_roofline:.0f}%"]
    more = [*roofline, *(["datasheet ceilings"] if on_datasheet(row.ceilings) else [])]
    if row.percent_of_bound is None:
        return ", ".join(more)
    return f"{row.percent_of_bound:.0f}% of the bound" + (f" ({', '.join(more)})" if more else "")


def milliseconds(row: Row) -> str:
    """Return the median time in words."""
    return f"{row.ms_median:.3g} ms"
