"""Write every number that stands in README.md, docs/ and results/ and comes from stored rows.

    python tools/pages.py  # after new rows

It writes results/README.md and results/claims.md, and in other pages what stands between `<!-- from rows: NAME -->` and
`<!-- end -->`: NAME is a function below.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import fill

import headline
from headline import milliseconds

from tflabench.conclusions import claims_page
from tflabench.conclusions.campaigns import conditions_of
from tflabench.conclusions.ratio import fastest, ratio
from tflabench.implementations.registry import operation, our_kernels, owner
from tflabench.problem import InputError
from tflabench.rows.load import read_results
from tflabench.rows.schema import Row
from tflabench.theory.held_out import stored

PAGES = ("README.md", *(f"docs/{name}.md" for name in ("gla-walk-through", "kernels", "results", "theory")),
         "docs/use-the-kernels.md")  # fmt: skip
MARKED = re.compile(r"(<!-- from rows: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
OPERATIONS = {
    "mLSTMsig": "mlstm_sig",
    "mLSTMexp": "mlstm_exp",
    "Mamba 2": "mamba2",
    "Simple GLA": "simple_gla",
    "Retention": "retention",
}


def ok_rows(folder: Path, name: str = "", pass_: str = "", seq_len: int = 0) -> list[Row]:
    """Return the right rows of a folder: of an implementation, a pass and a length where they are given."""
    wanted = {"implementation": name, "pass_": pass_, "seq_len": seq_len}
    rows = [row for row in read_results(folder).rows if row.status == "ok"]
    return [row for row in rows if all(getattr(row, column) == value for column, value in wanted.items() if value)]


def readme_table(results: Path) -> Iterator[str]:
    """Yield our fastest kernel and its fastest peer by operation at T = 4096 on an H100, then what measured them.

    Operations of which a peer ran with another Triton only have a second line.

    Raises:
        InputError: rows are of several versions of one kernel of ours.
    """
    yield "| operation | peer | forward: ours | peer | ratio | forward + backward: ours | peer | ratio |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|"
    fig4, other = (results / "h100" / name for name in ("paper-fig4", "paper-fig4-triton-3.7.1"))
    shown = [row for folder in (fig4, other) for row in ok_rows(folder, seq_len=4096)]
    for (name, _), versions in headline.kernel_versions(shown).items():
        if len(versions) > 1:
            raise InputError(f"README's table would have {name} kernels of versions {versions}: measure its rows again")
    usual = {(row.implementation, row.pass_) for row in ok_rows(fig4, seq_len=4096)}
    for title, name in OPERATIONS.items():
        for folder, version in ((fig4, ""), (other, ", Triton 3.7.1")):
            rows = [r for r in ok_rows(folder, seq_len=4096) if operation(r.implementation, r.gate) == name]
            if folder is fig4 or any((row.implementation, row.pass_) not in usual for row in rows):
                yield f"| {' | '.join([title + version, *_cells(rows)])} |"
    measured = read_results(fig4)
    facts = {name: values[0] for name, values in conditions_of(measured.rows, measured.runs).items()}
    yield ""
    yield wrapped(
        "Both sides of a ratio took turns on one GPU. †: it held its clock back while ours ran, so the ratio is a "
        "bound (≥). Measured by "
        f"`{headline.command([run['arguments'] for run in measured.runs.values()])}` on an "
        f"{facts['device'].removeprefix('NVIDIA ')} with torch {facts['torch']}, Triton {facts['triton']} and driver "
        f"{facts['driver']}. Two kernels of peers need Triton 3.7.1, and took turns with ours there."
    )


def _cells(rows: Sequence[Row]) -> list[str]:
    """Return the packages of the fastest peers, and ours, the peer and their ratio for both passes."""
    cells, packages = [], []
    for pass_ in ("fw", "fwbw"):
        of_pass = [row for row in rows if row.pass_ == pass_]
        ours = fastest([row for row in of_pass if row.implementation in our_kernels()])
        peers = [row for row in of_pass if owner(row.implementation).role == "peer"]
        cells.append(milliseconds(ours))
        if not peers:
            cells += ["", ""]
            continue
        peer = fastest(peers)
        over = ratio(peer, ours)
        cells += [milliseconds(peer), f"{over.bound}{over.value:.1f}" if over else ""]
        packages.append(f"{peer.package} {peer.package_version}")
    return [", ".join(dict.fromkeys(packages)) or "none", *cells]


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
    verdict = f"The model does not beat the rule for {lost}." if lost else "The model beats the rule."
    yield wrapped(
        "A group is a kernel, pass, head size and chunk size: its rows differ in length and batch alone, and are no "
        "independent samples. The rule beside the model is the time of the other GPU times the ratio of bandwidths. "
        f"Median errors on rows that both GPUs have: {numbers}. {verdict} No row was kept apart while terms of the "
        "model were chosen, and all have 32,768 or 65,536 tokens."
    )


BLOCKS = {
    function.__name__: function
    for function in (
        readme_table, throttled, host_times, gla_ratios, gla_published, of_bound, best_chunk, model_errors
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
    claims = claims_page.markdown(results, ["python", "tools/pages.py"], results)
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
