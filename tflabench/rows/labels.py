"""How rows are named in text: the implementation, its size, its time."""

from __future__ import annotations

from tflabench.rows.schema import Row

PASS_TITLES = {"fw": "forward", "fwbw": "forward + backward", "decode": "decode step"}


def label(row: Row) -> str:
    """An implementation as it ran: with its chunk size where it has one."""
    return row.implementation if row.chunk_size is None else f"{row.implementation} (L={row.chunk_size})"


def size(row: Row) -> str:
    return f"B={row.batch} T={row.seq_len} heads {heads(row)}"


def heads(row: Row) -> str:
    return f"{row.heads}x{row.d_hv}" if row.d_qk == row.d_hv else f"{row.heads}x{row.d_qk}/{row.d_hv}"


def waits_for_host(row: Row) -> bool:
    """Whether the host needs longer to enqueue a call than the GPU takes for it."""
    return row.status == "ok" and (row.host_ms or 0.0) > (row.ms_median or 0.0)


def milliseconds(row: Row) -> str:
    return f"{row.ms_median:.3g} ms"
