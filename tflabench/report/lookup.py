"""Answers to "which kernel for my shape": from measured rows, and from a grid that `advise` computes."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tflabench.conclusions import advise
from tflabench.conclusions.advise import Candidate, Demand
from tflabench.conclusions.ratio import timed
from tflabench.problem import InputError, Problem, size_in_words
from tflabench.rows.schema import Row
from tflabench.theory import hardware

GATES = ("exp,sig", "exp", "sig")  # what `advise --gate` is asked
MOST_SHAPES = 100  # that `advise` is asked about: a shape takes 10 to 20 ms


class LookupSize(NamedTuple):
    """One question of the look-up, without its gate."""

    device: str
    pass_: str
    dtype: str
    seq_len: int
    batch: int
    heads: int
    d_qk: int
    d_hv: int

    def key(self, gate: str) -> str:
        """Return the name under which the page finds the answer."""
        return "|".join(map(str, (self.device, gate, *self[1:])))


@dataclass(frozen=True)
class Best:
    """A kernel at a shape, in words: its chunk size, runtime of a call, and memory."""

    kernel: str
    chunk: str
    ms: str
    memory: str
    source: str
    row: int | None = None


def measured(records: Sequence[Row]) -> dict[str, list[Best]]:
    """Return by key the fastest mLSTM and the next of another kernel in the same comparison, of rows that are right."""
    rows_of: dict[tuple[LookupSize, str], list[tuple[int, Row]]] = {}
    for index, row in enumerate(records):
        if row.family == "mlstm" and row.gate in GATES and timed(row):
            for gate in (row.gate, GATES[0]):
                rows_of.setdefault((_shape(row), gate), []).append((index, row))
    best = {}
    for (shape, gate), indexed in rows_of.items():
        (index, first), *slower = sorted(indexed, key=lambda pair: pair[1].ms_median or 0.0)
        occasion = first.comparison_id, first.run_id
        peers = [pair for pair in slower if (pair[1].comparison_id, pair[1].run_id) == occasion]
        second = [pair for pair in peers if pair[1].implementation != first.implementation][:1]
        best[shape.key(gate)] = [_of_row(*pair) for pair in ((index, first), *second)]
    return best


def _of_row(index: int, row: Row) -> Best:
    memory = "" if row.peak_bytes is None else size_in_words(row.peak_bytes)
    source = ", ".join(["measured", *(["throttled"] if row.throttled else []), *(["noisy"] if row.noisy else [])])
    return Best(row.implementation, str(row.chunk_size or ""), f"{row.ms_median:.4g} ms", memory, source, index)


def _shape(row: Row) -> LookupSize:
    return LookupSize(row.device, row.pass_, row.dtype, row.seq_len, row.batch, row.heads, row.d_qk, row.d_hv)


def shapes(records: Iterable[Row]) -> list[LookupSize]:
    """Return the shapes to ask `advise` about, those with most rows first, at most MOST_SHAPES.

    They are those of the mLSTM rows of known GPUs, and the powers of two between the shortest and the longest T at the
    same number of tokens.
    """
    counted = Counter(_shape(row) for row in records if row.family == "mlstm" and row.pass_ in ("fw", "fwbw"))
    modelled = [shape for shape, _ in counted.most_common() if hardware.from_device_name(shape.device)]
    return list(dict.fromkeys([*modelled, *_between(modelled)]))[:MOST_SHAPES]


def _between(shapes: Sequence[LookupSize]) -> Iterator[LookupSize]:
    """Yield the powers of two between the lengths of shapes that differ in T and batch alone, at their tokens."""
    lines: dict[LookupSize, list[LookupSize]] = {}
    for shape in shapes:
        lines.setdefault(shape._replace(seq_len=0, batch=shape.seq_len * shape.batch), []).append(shape)
    for line in lines.values():
        lengths = [shape.seq_len for shape in line]
        tokens = line[0].seq_len * line[0].batch
        for power in range(min(lengths).bit_length(), max(lengths).bit_length()):
            if tokens % 2**power == 0:
                yield line[0]._replace(seq_len=2**power, batch=tokens >> power)


def modelled(shapes: Iterable[LookupSize]) -> dict[str, list[Best] | str]:
    """Return by key what `tflabench advise` recommends and the next best kernel, or why it recommends none."""
    answers: dict[str, list[Best] | str] = {}
    for shape in shapes:
        problem = Problem(shape.batch, shape.heads, shape.seq_len, shape.d_qk, shape.d_hv, dtype=shape.dtype,
                          pass_=shape.pass_)  # type: ignore[arg-type]  # fmt: skip
        answers |= {shape.key(gate): answer for gate, answer in _advised(shape.device, problem).items()}
    return answers


def _advised(device: str, problem: Problem) -> dict[str, list[Best] | str]:
    """Return the answer for each of GATES: gates do not change the order of what both rank."""
    named = hardware.from_device_name(device)
    assert named is not None
    gpu = hardware.find(named.name)
    try:
        advice = advise.advice(Demand(problem, memory_bytes=gpu.memory_bytes), gpu, GATES[0].split(","), "cuda")
    except InputError as error:
        return dict.fromkeys(GATES, str(error))
    ranked = {gate: [c for c in advice.ranked if c.kernel.computes in gate.split(",")] for gate in GATES}
    return {gate: _answer(choices) for gate, choices in ranked.items()}


def _answer(ranked: Sequence[Candidate]) -> list[Best] | str:
    if not ranked or not ranked[0].fits:
        return "nothing fits the memory of this GPU" if ranked else "no kernel can run this"
    first = ranked[0]
    slower = [choice for choice in ranked if choice.fits and choice.kernel.name != first.kernel.name]
    return [_of_choice(choice) for choice in (first, *slower[:1])]


def _of_choice(choice: Candidate) -> Best:
    chunk, source = str(choice.problem.chunk_size), f"modelled ({choice.source})"
    return Best(choice.kernel.name, chunk, f"{choice.call_s * 1e3:.4g} ms", size_in_words(choice.memory_bytes), source)


def commands(devices: Iterable[str]) -> dict[str, str]:
    """Return by device how the command starts that answers for it: by model, or measured where there is no model."""
    gpus = {device: hardware.from_device_name(device) for device in devices}
    return {
        device: shlex.join(["tflabench", "advise", *(["--gpu", gpu.name] if gpu else ["--measure"])])
        for device, gpu in gpus.items()
    }
