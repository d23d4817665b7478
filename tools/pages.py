"""Write every number that stands in README.md, docs/ and results/ and comes from stored rows.

    python tools/pages.py  # after new rows

It writes results/README.md and results/claims.md, and in other pages what stands between `<!-- from rows: NAME -->` and
`<!-- end -->`: NAME is a function below.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from math import inf
from pathlib import Path
from textwrap import fill
from typing import NamedTuple

import claims_page
import headline
from headline import milliseconds

from tflabench.conclusions.campaigns import conditions_of
from tflabench.conclusions.ratio import fastest, ratio
from tflabench.implementations.registry import operation, our_kernels, owner
from tflabench.problem import InputError
from tflabench.rows.labels import THROTTLED, heads
from tflabench.rows.load import read_results
from tflabench.rows.schema import Row
from tflabench.theory.held_out import stored

PAGES = ("README.md", *(f"docs/{name}.md" for name in ("gla-walk-through", "kernels", "results", "theory")),
         "docs/use-the-kernels.md")  # fmt: skip
MARKED = re.compile(r"(<!-- from rows: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
ELSEWHERE = "‡"  # after a time with another Triton
OPERATIONS = {
    "mLSTMsig": "mlstm_sig",
    "mLSTMexp": "mlstm_exp",
    "Mamba 2": "mamba2",
    "Simple GLA": "simple_gla",
    "Retention": "retention",
}
ANCHORS = ("hopper_sig", "hopper_mamba2", "nxai_sig_xl", "mamba2", "fla_retention")


def ok_rows(folder: Path, name: str = "", pass_: str = "", seq_len: int = 0) -> list[Row]:
    """Return the right rows of a folder: of an implementation, a pass and a length where they are given."""
    wanted = {"implementation": name, "pass_": pass_, "seq_len": seq_len}
    rows = [row for row in read_results(folder).rows if row.status == "ok"]
    return [row for row in rows if all(getattr(row, column) == value for column, value in wanted.items() if value)]


def readme_table(results: Path) -> Iterator[str]:
    """Yield our fastest kernel and the fastest right one of every package by operation on an H100, at T = 4096.

    A peer is the fastest in any Triton that was measured, and ours is what took turns with it there. The range of the
    ratio is over all T.

    Raises:
        InputError: rows are of several versions of one kernel of ours.
    """
    names = ("paper-fig4", "peers", "paper-fig4-triton-3.7.1", "paper-fig4-triton-3.9")
    folders = [results / "h100" / name for name in names]
    by_folder = {folder: ok_rows(folder) for folder in folders if folder.exists()}
    for (name, _), versions in headline.kernel_versions(row for rows in by_folder.values() for row in rows).items():
        if len(versions) > 1:
            raise InputError(f"README's table would have {name} kernels of versions {versions}: measure its rows again")
    columns = ("ours", "peer", "ratio", "over T")
    yield f"| operation | peer | forward: {' | '.join(columns)} | forward + backward: {' | '.join(columns)} |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for title, name in OPERATIONS.items():
        rows = {
            folder: [row for row in of_folder if operation(row.implementation, row.gate) == name]
            for folder, of_folder in by_folder.items()
        }
        cuts = {heads(row) for row in rows[folders[0]] if row.implementation in our_kernels()}
        rows = {folder: [row for row in part if heads(row) in cuts] for folder, part in rows.items()}
        yield f"| {' | '.join([title, *_cells(rows)])} |"
    measured = read_results(folders[0])
    facts = {name: values[0] for name, values in conditions_of(measured.rows, measured.runs).items()}
    waits = [_tokens_from(by_folder[folders[0]], pass_) for pass_ in ("fw", "fwbw")]
    yield ""
    yield wrapped(
        f"Both sides of a ratio took turns on one GPU. {THROTTLED}: it held its clock back while ours ran, so that the "
        f"ratio is a bound (≥). {ELSEWHERE}: with another Triton, 3.7.1 or 3.9, in which the peer is faster or alone "
        "right; ours beside it is of that comparison. *Over T* is the range of the ratio over the lengths from 512 to "
        "65,536 at which that kernel is the fastest peer, without bounds. The host enqueues as fast as the GPU works "
        f"from about {waits[0]:,} tokens a call on forward, and {waits[1]:,} with backward (`host_ms` of ours, on that "
        "machine); with fewer, eager PyTorch waits for the host. "
        f"Measured by `{headline.command([run['arguments'] for run in measured.runs.values()])}`, and peers at chunk "
        "sizes and by functions that are not the figure's by `tflabench sweep --preset peers`, on H100s "
        f"({facts['device'].removeprefix('NVIDIA ')}) with torch {facts['torch']}, Triton {facts['triton']} and driver "
        f"{facts['driver']}, protocol {measured.rows[0].protocol_version}."
    )


class Beside(NamedTuple):
    """Our fastest row and the fastest peer of one comparison, if any, and whether that is of another Triton."""

    ours: Row
    peer: Row | None
    elsewhere: bool


def _best_pair(rows: Mapping[Path, Sequence[Row]]) -> Beside:
    """Return the pair of the fastest peer in any folder; ours of the first one where none has a peer."""
    pairs = []
    for folder, of_folder in rows.items():
        ours = [row for row in of_folder if row.implementation in our_kernels()]
        peers = [row for row in of_folder if owner(row.implementation).role == "peer" and row.tuned_fully]
        if ours:
            pairs.append(Beside(fastest(ours), fastest(peers) if peers else None, "triton" in folder.name))
    return min(pairs, key=lambda pair: pair.peer.ms_median or inf if pair.peer else inf)


def _cells(rows: Mapping[Path, Sequence[Row]]) -> list[str]:
    """Return the packages of the fastest peers, and ours, the peer, their ratio and its range for both passes."""
    cells, packages = [], []
    for pass_ in ("fw", "fwbw"):
        by_length = {
            T: _best_pair({
                folder: [row for row in part if (row.pass_, row.seq_len) == (pass_, T)] for folder, part in rows.items()
            })
            for T in sorted({row.seq_len for part in rows.values() for row in part if row.pass_ == pass_})
        }  # fmt: skip
        ours, peer, elsewhere = by_length[4096]
        cells.append(milliseconds(ours))
        if not peer:
            cells += ["", "", ""]
            continue
        over = ratio(peer, ours)
        alike = (each for each in by_length.values() if each.peer and each.peer.implementation == peer.implementation)
        ratios = [ratio(each.peer, each.ours) for each in alike if each.peer]
        values = [each.value for each in ratios if each and not each.bound]
        cells += [milliseconds(peer) + ELSEWHERE * elsewhere, f"{over.bound}{over.value:.1f}" if over else ""]
        cells.append(f"{min(values):.1f} to {max(values):.1f}" if len(values) > 1 else "")
        packages.append(f"{peer.package} {peer.package_version}")
    return [", ".join(dict.fromkeys(packages)) or "none", *cells]


def _tokens_from(rows: Iterable[Row], pass_: str) -> int:
    """Return from how many tokens on the GPU needs longer for a fused call than the host, for all, in thousands."""
    fused = [row for row in rows if row.pass_ == pass_ and row.implementation.startswith("hopper_")]
    most = max(row.batch * row.seq_len * row.host_ms / row.ms_median for row in fused if row.host_ms and row.ms_median)
    return 1000 * round(most / 1000)


def occasions(results: Path) -> Iterator[str]:
    """Yield how often an interval holds the ratio of the other occasion, and how far single times have moved."""
    yield "| folder and its repeat | ratios | interval holds | times | largest move |"
    yield "|---|---:|---:|---:|---:|"
    for folder in (f"{gpu}/paper-fig{figure}" for gpu in ("h100", "h200") for figure in (4, 12)):
        first, again = ({r.point: r for r in ok_rows(results / f"{folder}{end}")} for end in ("", "-repeat"))
        times = [(row, again[point]) for point, row in first.items() if point in again]
        times = [pair for pair in times if not any(row.throttled for row in pair)]
        holds = []
        for one, other in combinations(times, 2):
            both = [ratio(*rows, allow_throttled=True) for rows in zip(one, other, strict=True)]
            if both[0] and both[1]:
                holds += [abs(both[1].value - both[0].value) < over.margin for over in both if over]
        moved = max((b.ms_median or 0) / (a.ms_median or 1) - 1 for pair in times for a, b in (pair, pair[::-1]))
        yield f"| {folder} | {len(holds) // 2:,} | {sum(holds) / len(holds):.1%} | {len(times)} | {moved:.1%} |"


def gpus(results: Path) -> Iterator[str]:
    """Yield the times of five kernels on each H100 that has measured them with one Triton, at T = 4096."""
    rows = [row for name in ("quick", "paper-fig4", "paper-fig4-repeat") for row in ok_rows(results / "h100" / name)]
    yield "| kernel | forward: ms on each H100 | furthest apart | with backward | furthest apart |"
    yield "|---|---:|---:|---:|---:|"
    for name in ANCHORS:
        cells = [f"`{name}`"]
        for pass_ in ("fw", "fwbw"):
            alike = [row for row in rows if (row.implementation, row.pass_, row.seq_len) == (name, pass_, 4096)]
            times = sorted(row.ms_median for row in {row.gpu_uuid: row for row in alike}.values() if row.ms_median)
            cells += [", ".join(f"{ms:#.3g}" for ms in times), f"{times[-1] / times[0] - 1:.1%}"]
        yield f"| {' | '.join(cells)} |"


def throttled(results: Path) -> Iterator[str]:
    """Yield how many rows of the quick look were throttled."""
    rows = [row for row in read_results(results / "h100" / "quick").rows if row.ms_median]
    count = sum(bool(row.throttled) for row in rows)
    yield f"{count} of the {len(rows)} timed rows in `results/h100/quick` are throttled."


def host_times(results: Path) -> Iterator[str]:
    """Yield how long the host needs to enqueue a call."""
    rows = [row for row in ok_rows(results / "h200" / "paper-fig4") if row.implementation in our_kernels()]
    fw, fwbw = ([row.host_ms for row in rows if row.pass_ == pass_ and row.host_ms] for pass_ in ("fw", "fwbw"))
    yield wrapped(
        f"In eager PyTorch the host needs {min(fw):.1f} to {max(fw):.1f} ms to enqueue a forward pass, and "
        f"{min(fwbw):.1f} to {max(fwbw):.1f} ms with backward (`host_ms` of "
        "[results/h200/paper-fig4](../results/h200/paper-fig4))."
    )


def gla_ratios(results: Path) -> Iterator[str]:
    """Yield how much faster than fla's GLA ours is, where neither was throttled."""
    ranges = []
    for pass_ in ("fw", "fwbw"):
        ours, fla = (ok_rows(results / "h100" / "paper-fig4", name, pass_) for name in ("tfla_gla_xl", "fla_gla"))
        ratios = [ratio(peer, row) for row in ours for peer in fla]
        values = [over.value for over in ratios if over and not over.bound]
        ranges.append(f"{min(values):.2f} to {max(values):.2f} times")
    yield wrapped(
        f'On an H100 `"tfla"` is {ranges[0]} as fast as fla\'s `chunk_gla` forward, and {ranges[1]} with backward '
        "([rows of Fig. 4](../results/h100/paper-fig4/times.csv) that were not throttled)."
    )


def gla_published(results: Path) -> Iterator[str]:
    """Yield the time of GLA's published kernels in a sweep."""
    (row,) = ok_rows(results / "h100" / "paper-fig4", "gla_chunk_fuse", "fw", 4096)
    yield wrapped(
        "In a sweep, which draws g in bfloat16, empties the L2 and times whole calls, the 16 sequences take "
        f"{milliseconds(row)} ms ([rows](../results/h100/paper-fig4/times.csv))."
    )


def of_bound(results: Path) -> Iterator[str]:
    """Yield how near mLSTMexp comes to the bound."""
    fw, fwbw = (fastest(ok_rows(results / "h100" / "quick", "hopper_exp", pass_, 4096)) for pass_ in ("fw", "fwbw"))
    yield wrapped(
        f"On an H100 ([rows](../results/h100/quick)) mLSTMexp of that shape takes {milliseconds(fw)} ms forward, "
        f"{fw.percent_of_bound:.0f}% of the least time that any kernel needs; with backward {milliseconds(fwbw)} ms, "
        f"{fwbw.percent_of_bound:.0f}%, or {fwbw.percent_of_own_roofline:.0f}% of what the bytes of these walks need."
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
    fewer = f"; on rows of fewer, which all were, the median error is {few}" if few else ", and none has fewer"
    verdict = f"The model does not beat the rule for {lost}." if lost else "The model beats the rule."
    yield wrapped(
        "A group is a kernel, pass, head size and chunk size: its rows differ in length and batch alone, and are no "
        "independent samples. The rule beside the model is the time of the other GPU times the ratio of bandwidths. "
        f"Median errors on rows that both GPUs have: {numbers}. {verdict} No row of 32,768 tokens and more was kept "
        f"apart while terms of the model were chosen{fewer}."
    )


BLOCKS = {
    function.__name__: function
    for function in (
        readme_table, occasions, gpus, throttled, host_times, gla_ratios, gla_published, of_bound, best_chunk,
        model_errors,
    )
}  # fmt: skip


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
    """Write the pages that have changed, and print their names."""
    root = Path(__file__).resolve().parents[1]
    for name, text in pages(root, root / "results").items():
        if text != (root / name).read_text():
            (root / name).write_text(text)
            print(name)


if __name__ == "__main__":
    main()
