"""Rows of whole models as a table, and from which length on layers of linear RNNs beat those of attention. No torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from tflabench.baselines.architectures import ARCHITECTURES
from tflabench.conclusions.ratio import Ratio, fastest, ratio, timed
from tflabench.conclusions.tables import TableColumn
from tflabench.implementations import registry
from tflabench.problem import PASS_TITLES
from tflabench.rows.schema import LEAD_LIMIT_S, Row
from tflabench.theory import hardware

MODES = {"training": "fwbw", "prefill": "fw", "decode": "decode"}  # of a model, and the passes that they are
# Seconds of a step in the answers to the paper's reviews.
REVIEW = {"llama-1.4b.sdpa": 2.39, "xlstm-1.4b.mlstm_kernels_limit": 1.67, "xlstm-1.4b.mlstm_kernels": 1.66}
REVIEW_DIFFERS = (
    "The review's steps are of 32 GPUs with 8 sequences each and sharded models; these are of one GPU, unsharded, and "
    "of so many sequences at once as fit, until there are 8. The review has mLSTMsig too, at 1.64 s."
)
COUNTED = "FLOPs are 2 N a token, 6 N in training, and those of the recurrence; N is without the embedding."


def mfu(row: Row, seconds: float) -> float | None:
    """Return the FLOP/s of a step over those of the GPU's datasheet; None where it has none."""
    gpu = hardware.from_device_name(row.device)
    if gpu is None or row.model_flops is None or row.dtype not in hardware.DATASHEET_DTYPES:
        return None
    return row.model_flops / seconds / gpu.ceilings.flops_per_s


def record(row: Row) -> dict[str, Any]:
    """Return what the table of models shows of a row: times in s, memory in GiB, FLOPs in 1e9, shares of 1."""
    late_ms = max((row.host_ms or 0.0) - (row.ms_median or 0.0), 0.0)
    host_ms = min(late_ms, 1e3 * LEAD_LIMIT_S)  # what is later is in ms_median
    seconds = (row.ms_median + host_ms) / 1e3 if row.ms_median else None
    name = str(registry.operation(row.implementation))
    of = ARCHITECTURES[name]
    tokens = row.batch if row.pass_ == "decode" else row.batch * row.seq_len  # of a step
    at_once = row.details.get("sequences_at_once")
    reason = "out of memory" if row.status == "oom" else row.reason
    notes = [reason] if reason else []
    if at_once and at_once < row.batch:
        notes.append(f"{row.batch // at_once} x {at_once} accumulated")
    if row.ms_median and host_ms > 0.05 * row.ms_median:
        notes.append("the host is slower than the GPU")
    recurrence = row.details.get("recurrence_ms")
    at_size = (row.pass_, row.batch, row.seq_len) == ("fwbw", 8, 8192)  # of the review
    return {
        "model": name,
        "kernels": row.implementation.removeprefix(f"{name}."),
        "mode": next(mode for mode, pass_ in MODES.items() if pass_ == row.pass_),
        "batch": row.batch,
        "seq_len": row.seq_len,
        "status": row.status,
        "step_s": seconds,
        "tokens_per_s": tokens / seconds if seconds else None,
        "peak_gib": row.peak_bytes / 2**30 if row.peak_bytes else None,
        "recurrence": recurrence / 1e3 / seconds if recurrence and seconds else None,
        "parameters": of.layer_parameters if row.implementation.endswith(".layer") else of.parameters,
        "gflops_per_token": row.model_flops / tokens / 1e9 if row.model_flops else None,
        "mfu": mfu(row, seconds) if seconds else None,
        "review_s": REVIEW.get(row.implementation) if at_size else None,
        "note": "; ".join(notes),
    }


def columns(records: Sequence[dict[str, Any]]) -> list[TableColumn]:
    """Return the columns of the table of models; the review's only where a row has it."""
    review = [TableColumn("review\n[s]", "review_s", ".2f", drop=1)] if any(r["review_s"] for r in records) else []
    return [
        TableColumn("model", "model"),
        TableColumn("kernels", "kernels"),
        TableColumn("mode", "mode"),
        TableColumn("B", "batch", "d"),
        TableColumn("T", "seq_len", "d"),
        TableColumn("status", "status", drop=1),
        TableColumn("step\n[s]", "step_s", ".4g"),
        *review,
        TableColumn("tokens\nper s", "tokens_per_s", ",.0f"),
        TableColumn("peak\n[GiB]", "peak_gib", ".2f"),
        TableColumn("recur-\nrence", "recurrence", ".0%", drop=2),
        TableColumn("para-\nmeters", "parameters", ",d", drop=5),
        TableColumn("GFLOP\na token", "gflops_per_token", ".3g", drop=4),
        TableColumn("MFU", "mfu", ".0%", drop=3),
        TableColumn("note", "note", drop=1, enough=40),
    ]


def gains(rows: Sequence[Row]) -> Iterator[str]:
    """Yield how much faster a step our kernels make than the best of others, a sentence a comparison."""
    together = defaultdict[tuple[str | None, str | None], list[Row]](list)
    for row in rows:
        if timed(row):
            together[row.comparison_id, registry.operation(row.implementation)].append(row)
    for group in together.values():
        of_role = defaultdict[str, list[Row]](list)
        for row in group:
            of_role[registry.owner(row.implementation).role].append(row)
        if not (of_role["ours"] and of_role["peer"]):
            continue
        ours, peer = fastest(of_role["ours"]), fastest(of_role["peer"])
        if gain := _times_as_fast(ours, peer):
            of = f"{record(ours)['mode']}, {ours.batch} x {ours.seq_len}{', both throttled' if ours.throttled else ''}"
            sentence = f"{ours.title} is {gain.value:.2f} ± {gain.margin:.2f} times as fast as {peer.title} ({of})"
            if recurrence := ours.details.get("recurrence_ms"):
                alone = peer.ms_median / (ours.ms_median - recurrence)  # type: ignore[operator]
                sentence += f"; with a recurrence that takes no time it would be {alone:.2f}"
            yield f"{sentence}."


def crossings(rows: Sequence[Row]) -> Iterator[str]:
    """Yield from which length on a layer of a linear RNN is faster than one of attention, by pass and batch."""
    sizes = defaultdict[tuple[str, int, str], list[Row]](list)
    for row in rows:
        if timed(row) and row.implementation.endswith(".layer"):
            sizes[row.pass_, row.batch, row.dtype].append(row)
    for (pass_, batch, _), group in sizes.items():
        attention = {row.seq_len: row for row in group if _is_attention(row)}
        for name in dict.fromkeys(row.implementation for row in group if not _is_attention(row)):
            mine = sorted((row for row in group if row.implementation == name), key=lambda row: row.seq_len)
            over = {
                row.seq_len: _times_as_fast(row, attention[row.seq_len]) for row in mine if row.seq_len in attention
            }
            faster = {T: gain.value > 1 for T, gain in over.items() if gain}
            if faster:
                rival = next(iter(attention.values())).title
                yield f"{mine[0].title}: {_from(faster)} {rival}, {PASS_TITLES[pass_]}, batch {batch}."


def _from(faster: dict[int, bool]) -> str:
    """Return from which length on it is faster, of whether it is by length."""
    lengths = sorted(faster)
    last_slower = max((T for T in lengths if not faster[T]), default=0)
    above = [T for T in lengths if last_slower < T]
    if not above:
        return f"up to T = {lengths[-1]} not faster than"
    return f"from T = {above[0]} on{'' if last_slower else ', the shortest measured,'} faster than"


def _is_attention(row: Row) -> bool:
    return registry.owner(row.implementation).name == "softmax attention"


def _times_as_fast(row: Row, attention: Row) -> Ratio | None:
    """Return a ratio of whole steps; where the GPU holds its clock back for both, as long ones make it, that counts."""
    return ratio(attention, row, allow_throttled=bool(row.throttled and attention.throttled))
