"""Write every number that stands in README.md, docs/ and results/ and comes from stored rows.

    python tools/pages.py  # after new rows

It writes results/README.md, results/claims.md and README's figure, and in other pages what stands between
`<!-- from rows: NAME -->` and `<!-- end -->`: NAME is a function below.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from textwrap import fill
from typing import NamedTuple

import claims_page
import headline
import operations
from headline import milliseconds

from tflabench.conclusions.ratio import fastest, ratio
from tflabench.figures.matplotlib_renderer import write
from tflabench.implementations.registry import find, is_current, our_kernels
from tflabench.rows.labels import THROTTLED
from tflabench.rows.load import find_results, read_results
from tflabench.rows.schema import Row
from tflabench.theory.held_out import stored

PAGES = ("README.md", *(f"docs/{name}.md" for name in ("gla-walk-through", "kernels", "results", "theory")),
         "docs/use-the-kernels.md")  # fmt: skip
MARKED = re.compile(r"(<!-- from rows: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
FIGURE = "results/h100/operations.png"  # of README
FIG_4, EARLIER = "h100/paper-fig4", "h100/paper-fig4-earlier"  # in part, of the same kernels
FIG_4_H200 = "h200/paper-fig4"


@cache
def measured(results: Path, gpu: str = "h100") -> operations.Comparisons:
    """Return what GPUs of a kind have measured."""
    return operations.Comparisons.below(results / gpu)


@cache
def ok_rows(folder: Path, name: str = "", pass_: str = "", seq_len: int = 0) -> list[Row]:
    """Return the right rows of a folder: of an implementation, a pass and a length where they are given."""
    wanted = {"implementation": name, "pass_": pass_, "seq_len": seq_len}
    rows = [row for row in read_results(folder).rows if row.status == "ok"]
    return [row for row in rows if all(getattr(row, column) == value for column, value in wanted.items() if value)]


def readme_table(results: Path) -> Iterator[str]:
    """Yield the table of operations, what its marks mean, and where its rows are from."""
    compared = measured(results)
    table = list(operations.table(compared, "operation", operations.OPERATIONS, "results/h100"))
    yield from table
    quoted = compared.quoted()
    rows = [row for pair in quoted for row in (pair.ours, pair.peer) if row]
    peers = {row.package: row for row in rows if row.implementation not in our_kernels()}
    named = [f"{name} {row.package_version} {_remark(row)}".strip() for name, row in sorted(peers.items())]
    days = sorted({row.started_at[:10] for row in rows})
    when = " to ".join(days[:: len(days) - 1 or 1])
    protocols = " and ".join(sorted({str(row.protocol_version) for row in rows}))
    versions = [(compared.packages[row.run_id]["torch"], str(row.driver)) for row in rows]
    torches, drivers = (" and ".join(sorted(set(values))) for values in zip(*versions, strict=True))
    waits = [_tokens_from(ok_rows(results / FIG_4), pass_) for pass_ in operations.PASSES]
    held = [Moves.between(results / FIG_4, results / again).held for again in (f"{FIG_4}-repeat", EARLIER)]
    yield ""
    yield wrapped(
        "Both sides of a ratio took turns on one GPU; ± is half of its [95% interval](docs/results.md#read-a-row), "
        f"in which {held[0]:.1%} of the ratios of Fig. 4 lay when another host measured them again, and {held[1]:.1%} "
        f"of those from a host of two days before. {_legend(table, compared.usual_triton)} "
        "*Range*: of the ratio to that kernel over all lengths and numbers of tokens measured with these heads, "
        "without bounds; empty where that is one size. Peers: "
        f"{', '.join(named)}."
    )
    yield ""
    yield wrapped(
        f"Measured on H100s ({rows[0].device.removeprefix('NVIDIA ')}, {when}) with torch {torches}, driver "
        f"{drivers} and protocol {protocols} by `tflabench sweep --preset NAME`. A ratio links its "
        "rows: their folder begins with the name of the preset, and its commit stands in "
        "[Sources](docs/results.md#sources). The host enqueues as fast as the GPU works from about "
        f"{waits[0]:,} tokens a call on forward, and {waits[1]:,} with backward (the least `host_ms` of ours in "
        "Fig. 4); with fewer, eager PyTorch waits for the host."
    )


def _legend(table: Iterable[str], usual_triton: str) -> str:
    """Return what the marks that a table has mean."""
    cells = [cell.strip() for line in table for cell in line.split("|")]
    meanings = {
        THROTTLED: "the GPU held its clock back while ours ran, so that the ratio is a bound (≥).",
        operations.ELSEWHERE: f"with another Triton than {usual_triton}, as the peer is faster or only right there; "
        "our time beside it is of the same comparison.",
        operations.IN_PART: "the peer's tuner ran out of time.",
    }
    return " ".join(f"{mark}: {meaning}" for mark, meaning in meanings.items() if any(mark in cell for cell in cells))


def models_table(results: Path, gpu: str = "h100") -> Iterator[str]:
    """Yield the recurrences of models on a GPU, ours and the fastest peer, and what the marks in the table mean."""
    compared = measured(results, gpu)
    table = list(operations.table(compared, "model", operations.MODELS, f"../results/{gpu}"))
    yield from table
    if legend := _legend(table, compared.usual_triton):
        yield from ("", wrapped(legend))


def _remark(row: Row) -> str:
    """Return what the title of an implementation has in brackets: its library, and what it does not compute."""
    title = impl.title if (impl := find(row.implementation)) else ""
    return title[title.index("(") :] if "(" in title else ""


def _tokens_from(rows: Iterable[Row], pass_: str) -> int:
    """Return from how many tokens on the GPU needs longer for a fused call than the host, for all, in thousands."""
    fused = [row for row in rows if row.pass_ == pass_ and row.implementation.startswith("hopper_")]
    host_ms = _host_ms(fused)
    waits = (row.batch * row.seq_len * host_ms[row.implementation] / row.ms_median for row in fused if row.ms_median)
    return 1000 * round(max(waits) / 1000)


def _host_ms(rows: Iterable[Row]) -> dict[str, float]:
    """Return what the host needs to enqueue a call of each kernel: the least, as a sweep compiles beside it."""
    host_ms: dict[str, float] = {}
    for row in rows:
        if row.host_ms:
            host_ms[row.implementation] = min(row.host_ms, host_ms.get(row.implementation, row.host_ms))
    return host_ms


def sources(results: Path) -> Iterator[str]:
    """Yield where the rows of each folder of a GPU are from, and which of our kernels in it have changed since."""
    yield "| folder | rows | measured | commit | protocol | kernels of ours that changed since |"
    yield "|---|---:|---|---|---|---|"
    for gpu in ("h100", "h200"):
        for folder in find_results(results / gpu):
            rows = folder.rows
            columns = (
                {row.started_at[:10] for row in rows},
                {(row.commit or "")[:7] for row in rows},
                {str(row.protocol_version) for row in rows},
                {row.implementation for row in rows if not is_current(row.implementation, row.kernel_version)},
            )
            cells = [", ".join(sorted(values)) for values in columns]
            yield f"| {gpu}/{folder.folder.name} | {len(rows):,} | {' | '.join(cells)} |"


def occasions(results: Path) -> Iterator[str]:
    """Yield how often an interval holds the ratio of the other occasion, and how far single times have moved."""
    yield "| folder and its repeat | ratios | interval holds | times | largest move |"
    yield "|---|---:|---:|---:|---:|"
    for folder in (FIG_4, "h100/paper-fig12", FIG_4_H200, "h200/paper-fig12"):
        yield f"| {folder} | {Moves.between(results / folder, results / f'{folder}-repeat')} |"
    same_gpu = results / f"{FIG_4_H200}-same-gpu"
    yield f"| {FIG_4_H200}, and the same GPU before | {Moves.between(results / FIG_4_H200, same_gpu)} |"
    yield f"| {FIG_4}, and a host of two days before | {Moves.between(results / FIG_4, results / EARLIER)} |"


class Moves(NamedTuple):
    """Compares two folders at points of the same kernels, where both are right, tuned whole and not throttled.

    Attributes:
        ratios: how many were taken on both.
        held: the share of intervals that hold the ratio of the other occasion.
        times: how many there are on both.
        furthest: how far one of them moved, relative.
    """

    ratios: int
    held: float
    times: int
    furthest: float

    @classmethod
    @cache
    def between(cls, first: Path, again: Path) -> Moves:
        """Compare two folders."""
        by_point = {row.point: row for row in ok_rows(again)}
        pairs = [(row, by_point[row.point]) for row in ok_rows(first) if row.point in by_point]
        alike = [(a, b) for a, b in pairs if a.kernel_version == b.kernel_version]
        times = [both for both in alike if not any(row.throttled or not row.tuned_fully for row in both)]
        holds = []
        for one, other in combinations(times, 2):
            both = [ratio(*rows, allow_throttled=True) for rows in zip(one, other, strict=True)]
            if both[0] and both[1]:
                holds += [abs(both[1].value - both[0].value) < over.margin for over in both if over]
        furthest = max((b.ms_median or 0) / (a.ms_median or 1) - 1 for pair in times for a, b in (pair, pair[::-1]))
        return cls(len(holds) // 2, sum(holds) / len(holds), len(times), furthest)

    def __str__(self) -> str:
        return f"{self.ratios:,} | {self.held:.1%} | {self.times} | {self.furthest:.1%}"


def gpus(results: Path) -> Iterator[str]:
    """Yield what single H100s took for kernels of the same versions, in ms forward at T = 4096 of Fig. 4."""
    anchors = ("hopper_sig", "hopper_retention", "hopper_mamba2", "fla_retention", "mamba2", "nxai_sig_xl")
    yield f"| H100 | measured | copies at, TB/s | {' | '.join(anchors)} |"
    yield "|---|---|---:|" + "---:|" * len(anchors)
    lines = []
    for folder in find_results(results / "h100"):
        of_gpu: dict[str, dict[str, Row]] = defaultdict(dict)
        for row in ok_rows(folder.folder, pass_="fw", seq_len=4096):
            cut = (64, 64, 64) if row.implementation.endswith("mamba2") else (16, 128, 256)
            here = (row.heads, row.d_qk, row.d_hv) == cut and row.batch == 16 and row.implementation in anchors
            if here and folder.runs[row.run_id]["packages"]["triton"] == "3.6.0":
                rows = of_gpu[row.gpu_uuid or ""]
                rows[row.implementation] = fastest([rows.get(row.implementation, row), row])
        for uuid, rows in of_gpu.items():
            first = min(rows.values(), key=lambda row: row.started_at)
            copies = folder.runs[first.run_id]["ceilings"]["bfloat16"]["bytes_per_s"] / 1e12
            cells = [first.started_at[:10], f"{copies:.3f}"]
            cells += [milliseconds(rows[name]) if name in rows else "" for name in anchors]
            if len(rows) > 1:
                lines.append((first.started_at, f"| {uuid[4:12]}, {folder.folder.name} | {' | '.join(cells)} |"))
    yield from (line for _, line in sorted(lines))


def host_times(results: Path) -> Iterator[str]:
    """Yield how long the host needs to enqueue a call."""
    rows = [row for row in ok_rows(results / FIG_4_H200) if row.implementation in our_kernels()]
    fw, fwbw = (_host_ms(row for row in rows if row.pass_ == pass_).values() for pass_ in operations.PASSES)
    yield wrapped(
        f"In eager PyTorch the host needs {min(fw):.1f} to {max(fw):.1f} ms to enqueue a forward pass, and "
        f"{min(fwbw):.1f} to {max(fwbw):.1f} ms with backward (the least `host_ms` of each kernel in "
        f"[results/{FIG_4_H200}](../results/{FIG_4_H200}))."
    )


def gla_published(results: Path) -> Iterator[str]:
    """Yield the time of GLA's published kernels in a sweep."""
    (row,) = ok_rows(results / FIG_4, "gla_chunk_fuse", "fw", 4096)
    yield wrapped(
        "In a sweep, which draws g in bfloat16, empties the L2 and times whole calls, the 16 sequences take "
        f"{milliseconds(row)} ms ([rows](../results/{FIG_4}/times.csv))."
    )


def of_bound(results: Path) -> Iterator[str]:
    """Yield how near mLSTMexp is to the bound."""
    fw, fwbw = (fastest(ok_rows(results / "h100" / "quick", "hopper_exp", pass_, 4096)) for pass_ in ("fw", "fwbw"))
    yield wrapped(
        f"On an H100 ([rows](../results/h100/quick)) mLSTMexp of that shape takes {milliseconds(fw)} ms forward: "
        f"{fw.percent_of_bound:.0f}% of the least time that any kernel needs. With backward it takes "
        f"{milliseconds(fwbw)} ms: {fwbw.percent_of_bound:.0f}%, or {fwbw.percent_of_own_roofline:.0f}% of what the "
        "bytes of these walks need."
    )


def best_chunk(results: Path) -> Iterator[str]:
    """Yield the fastest chunk sizes of Fig. 5."""
    ours, paper = (
        fastest(ok_rows(results / "h200" / "paper-fig5", name)).chunk_size for name in ("tfla_sig_xl", "nxai_sig_xl")
    )
    yield f"Our Triton kernels are fastest at L = {ours}, mlstm_kernels at {paper}"
    yield "([rows](../results/h200/paper-fig5))."


def model_errors(_: Path) -> Iterator[str]:
    """Yield the errors of the calibrated model, as `tools/model_error.py --write` stored them."""
    yield "| GPU | kernels | constant fitted on this GPU | rows | median error | largest | groups | median of groups |"
    yield "|---|---|---|---:|---:|---:|---:|---:|"
    for error in stored():
        fitted = "no" if error.held_out else "on one head size"
        of_rows = f"{error.rows} | {error.median:.1%} | {error.worst:+.0%}"
        yield f"| {error.gpu} | {error.algorithm} | {fitted} | {of_rows} | {error.groups} | {error.of_groups:.1%} |"
    yield ""
    beside = [error for error in stored() if error.held_out and error.by_rule is not None]
    beaten = [error for error in beside if (error.beside_rule or 0.0) >= (error.by_rule or 0.0)]
    numbers = "; ".join(
        f"{error.gpu}, {error.algorithm}: {error.beside_rule:.1%} by the model, {error.by_rule:.1%} by the rule"
        for error in beside
    )
    lost = ", ".join(f"{error.algorithm} kernels" for error in beaten)
    few = "; ".join(f"{e.gpu}, {e.algorithm}: {e.of_few:.0%} over {e.few} rows" for e in stored() if e.few)
    fewer = f" Rows of fewer tokens were not looked at then; their median error is {few}." if few else ""
    verdict = f"The model does not beat the rule for {lost}." if lost else "The model beats the rule."
    yield wrapped(
        "A group is a kernel, pass, head size and chunk size: its rows differ in length and batch alone, and are no "
        "independent samples. The rule beside the model is the time of the other GPU times the ratio of bandwidths. "
        f"Median errors on rows that both GPUs have: {numbers}. {verdict} The terms of the model were chosen with "
        f"rows of the table in view, of both GPUs.{fewer}"
    )


BLOCKS = {
    function.__name__: function
    for function in (
        readme_table, models_table, sources, occasions, gpus, host_times, gla_published, of_bound, best_chunk,
        model_errors,
    )
} | {"models_on_h200": partial(models_table, gpu="h200")}  # fmt: skip


def wrapped(sentence: str) -> str:
    """Return a paragraph in lines of at most 120 characters."""
    return fill(sentence, 120, break_long_words=False, break_on_hyphens=False)


def pages(repository: Path, results: Path) -> dict[str, str]:
    """Return the text of every page with numbers of the rows below `results`, by its path in the repository."""
    made = {name: (repository / name).read_text() for name in PAGES}
    for name, text in made.items():
        made[name] = MARKED.sub(lambda mark: mark[1] + "\n".join(BLOCKS[mark[2]](results)) + "\n" + mark[3], text)
    claims = claims_page.markdown(results)
    return {"results/README.md": headline.markdown(results), "results/claims.md": claims, **made}


def main() -> None:
    """Draw README's figure, write the pages that have changed, and print their names."""
    root = Path(__file__).resolve().parents[1]
    write(operations.figure(measured(root / "results")), root / FIGURE)
    for name, text in pages(root, root / "results").items():
        if text != (root / name).read_text():
            (root / name).write_text(text)
            print(name)


if __name__ == "__main__":
    main()
