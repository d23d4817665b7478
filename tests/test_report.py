"""`tflabench report`: the page says what the rows say, each number with its origin, and needs only a browser."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tflabench import report
from tflabench.cli.main import app
from tflabench.figures.style import looks
from tflabench.report import charts, duels, formats
from tflabench.report import folders as runs
from tflabench.rows.schema import Row

sys.path.insert(0, str(Path(__file__).parent))
from synthetic import row, write

MODEL = {
    "model_flops": 1e12, "model_bytes": 1e10, "model_ms_lower": 0.4, "model_ms_upper": 0.6, "tflops": 500.0,
    "gbps": 5e3, "rel_error": 2e-3, "sm_clock_mhz": 1980.0, "ceilings": "measured: calibrate", "extra_bytes": 2**29,
}  # fmt: skip
RUN = {
    "device": "NVIDIA H200", "driver": "580.1", "device_facts": {"cuda": "13.0", "l2_bytes": 60 * 2**20},
    "packages": {"torch": "2.11.0"}, "tflabench": "0.1.0", "commit": "0123456789ab",
    "arguments": ["sweep", "--impl", "tfla*", "-a", "seq_len=512:4096:x2"],
    "ceilings": {
        "bfloat16": {"flops_per_s": 8e14, "bytes_per_s": 4.2e12, "provenance": "measured", "source": "a copy"},
    },
}  # fmt: skip
ATTENTION = {"family": "attention", "gate": None, "formulation": "attention", "heads": 32, "d_qk": 128, "d_hv": 128}
REASONS = {
    "unsupported": "takes a chunk_size that is one tile", "oom": "34 GiB", "compile_error": "failed <at> ttgir",
    "crashed": "signal 6", "timeout": "no result in 300 s", "wrong": "dq is off by 0.31",
    "error": "</script><script>alert(1)</script>",
}  # fmt: skip


def sdpa(ms: float | None, T: int = 4096, **changes) -> Row:
    return row("sdpa", ms, seq_len=T, batch=65536 // T, **ATTENTION, chunk_size=None, **MODEL, **changes)


def tfla(ms: float | None, T: int = 4096, name: str = "tfla_sig_xl", **changes) -> Row:
    return row(name, ms, seq_len=T, batch=65536 // T, **MODEL, **changes)


def sweep() -> list[Row]:
    """Two kernels and attention over T, the second kernel over L too; every status; flags."""
    rows = []
    for pass_, slower in (("fw", 1), ("fwbw", 3)):
        for n, T in enumerate((512, 1024, 2048, 4096)):
            rows.append(sdpa(slower * (0.5 + n), T, pass_=pass_))
            rows.append(tfla(slower * (1 + 0.01 * n), T, pass_=pass_, noisy=T == 1024))
        for L in (64, 256, 512):
            rows.append(tfla(slower * (1 + abs(L - 256) / 256), pass_=pass_, chunk_size=L))
    failed = zip(REASONS, (512, 1024, 2048, 4096, 512, 1024, 2048), strict=True)
    for n, (status, T) in enumerate(failed):
        name = "tfla_exp_xl" if n < 4 else "tfla_exp_limit"
        rows.append(tfla(None, T, name, gate="exp").model_copy(update={"status": status, "reason": REASONS[status]}))
    return rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("report") / "fig4", sweep(), run=RUN)


@pytest.fixture(scope="module")
def page(folder) -> Page:
    return Page(report.write(folder).read_text())


def unpacked(script: str) -> str:
    return gzip.decompress(base64.b64decode(script)).decode()


class Page(HTMLParser):
    """A page's text, tags, embedded scripts and what its script is given."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html, self.tags, self.words, self.scripts = html, [], [], {}
        self._script = None
        self.feed(html)
        self.text = " ".join(" ".join(self.words).split())
        self.payload = json.loads(unpacked(self.scripts["payload"]))

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._script = dict(attrs).get("id", "") if tag in ("script", "style") else None

    def handle_endtag(self, tag):
        if tag in ("script", "style"):
            self._script = None

    def handle_data(self, data):
        if self._script is None:
            self.words.append(data)
        else:
            self.scripts[self._script] = data

    def all(self, name: str) -> list[str]:
        """The values of an attribute."""
        return [attrs[name] for _, attrs in self.tags if name in attrs]

    def traces(self, kind: str, **wanted) -> list[dict]:
        """The traces of all plots of a kind of figure that have these properties."""
        plots = [plot for name, plot in self.payload["plots"].items() if name.split("-")[1] == kind]
        return [trace for plot in plots for trace in plot["data"] if all(trace.get(k) == v for k, v in wanted.items())]


# --- the page


def test_holds_every_section_and_all_it_needs(page):
    ids = page.all("id")
    assert {"headline", "missing", "tables", "environment", "commands", "notes"} <= set(ids)
    assert len(ids) == len(set(ids))
    linked = {link[1:] for link in page.all("href") if link.startswith("#")}
    assert linked <= set(ids)
    assert not [link for name in ("href", "src", "action") for link in page.all(name) if not link.startswith("#")]
    assert "default-src 'none'" in next(attrs["content"] for _, attrs in page.tags if "http-equiv" in attrs)
    assert sorted(page.all("data-plot")) == sorted(page.payload["plots"])


def test_embeds_plotly_compressed(page):
    from plotly.offline import get_plotlyjs

    assert unpacked(page.scripts["plotly"]) == get_plotlyjs()
    assert len(page.html) < 3e6


def test_plotly_knows_every_property(page):
    from plotly.graph_objects import Figure

    for plot in page.payload["plots"].values():
        Figure(plot)  # raises ValueError at one that it does not know


def test_every_colour_has_one_for_the_dark_page(page):
    used = set(re.findall(r"#[0-9a-f]{6}", json.dumps(page.payload["plots"])))
    assert used
    assert used <= set(page.payload["dark"])


def test_every_implementation_of_a_large_campaign_has_its_symbol(tmp_path):
    """As many of one family and gate as there are markers, and one more."""
    rows = [tfla(1.0 + n, T, f"kernel_{n}") for n in range(12) for T in (512, 4096)]
    write(tmp_path, rows, run=RUN)
    page = report.write(tmp_path, tmp_path / "page.html").read_text()
    assert len(set(re.findall(r'<symbol id="k\d+"[^>]*>.*?</symbol>', page))) >= 11


def test_the_same_rows_make_the_same_page(folder, tmp_path):
    first, second = (report.write(folder, tmp_path / name).read_bytes() for name in "ab")
    assert first == second


def test_words_from_outside_stay_words(page):
    assert REASONS["error"] in page.text
    assert sum(tag == "script" for tag, _ in page.tags) == 3


# --- figures


def test_draws_every_measured_point_with_its_spread(page, folder):
    measured = [one for one in sweep() if one.status == "ok" and one.implementation == "sdpa" and one.pass_ == "fw"]
    (line,) = page.traces("runtime", meta=["sdpa"], mode="lines+markers")[:1]
    assert line["x"] == [one.seq_len for one in measured]
    assert line["y"] == pytest.approx([one.ms_median for one in measured])
    assert line["error_y"]["array"] == pytest.approx(
        [0.001 * y for y in line["y"]], rel=1e-2
    )  # as synthetic.row has it
    cards = [page.payload["cards"][str(index)] for index in line["customdata"]]
    assert [card["facts"][0][1] for card in cards] == ["500 µs", "1.50 ms", "2.50 ms", "3.50 ms"]


def test_flagged_times_are_open(page):
    line = page.traces("runtime", meta=["tfla_sig_xl"], mode="lines+markers")[0]
    by_x = dict(zip(line["x"], line["marker"]["color"], strict=True))
    assert [T for T, colour in by_x.items() if colour == "#ffffff"] == [1024]


def test_theory_is_a_band_that_says_its_equation(page):
    lower, upper = page.traces("runtime", fill=None, hoveron="points")[0], page.traces("runtime", fill="tonexty")[0]
    assert set(lower["y"]) == {0.4}
    assert set(upper["y"]) == {0.6}
    assert "max(FLOPs/α, bytes/β)" in lower["hovertext"][0]
    assert "modelled" in upper["hovertext"][0]


def test_points_that_failed_are_crosses_with_their_reason(page):
    crosses = [trace for trace in page.traces("runtime", yaxis="y2") if trace["mode"] == "markers"]
    shown = {
        remark
        for trace in crosses
        for index in trace["customdata"]
        for remark in page.payload["cards"][str(index)]["remarks"]
    }
    assert {f"{status.replace('_', ' ')}: {reason}" for status, reason in REASONS.items()} <= shown


def test_the_best_chunk_size_of_theory_is_marked(page):
    from tflabench.problem import Problem
    from tflabench.theory.chunk_size import Tradeoff
    from tflabench.theory.hardware import Ceilings

    ceilings = Ceilings(**RUN["ceilings"]["bfloat16"])
    best = Tradeoff(Problem(16, 16, 4096, 128, 256), "sig", ceilings, counts="exact").runtime_optimal
    assert page.traces("runtime", name="best L in theory")[0]["x"] == [pytest.approx(best, rel=0.05)]


def test_the_trade_off_names_the_fastest_chunk_size(page):
    line = page.traces("chunk", meta=["tfla_sig_xl"])[0]
    assert line["text"] == ["L 64", "", "L 256", "L 512"]
    assert line["marker"]["size"].index(max(line["marker"]["size"])) == 2


def test_roofs_and_points_of_the_roofline(page):
    datasheet, measured = (trace for trace in page.traces("roofline", mode="lines")[:2])
    assert max(datasheet["y"]) == 989
    assert max(measured["y"]) == 800
    point = page.traces("roofline", meta=["sdpa"])[0]
    assert set(point["x"]) == {100}  # 1e12 FLOP over 1e10 byte
    assert max(point["y"]) == pytest.approx(1e12 / 0.5e-3 / 1e12)


def test_a_single_point_is_a_ranking(tmp_path):
    page = Page(
        report.write(write(tmp_path, [sdpa(2.0), tfla(1.0), tfla(None, name="tfla_exp_xl")], run=RUN)).read_text()
    )
    marks = page.traces("runtime", mode="markers+text")
    assert sorted((trace["x"][0], trace["text"][0].strip()) for trace in marks) == [(1.0, "1.00"), (2.0, "2.00")]
    assert [trace["text"][0].strip() for trace in page.traces("runtime", mode="text")] == ["oom"]


def test_where_nothing_was_measured_a_figure_says_so(tmp_path):
    folder = write(tmp_path, [tfla(None, T) for T in (512, 1024)], run=RUN)
    plots = Page(report.write(folder).read_text()).payload["plots"]
    (said,) = plots["r0-runtime-seq_len-0"]["layout"]["annotations"]
    assert said["text"] == "no point was measured"


def test_an_unknown_device_has_no_roof_and_says_so(tmp_path):
    rows = [one.model_copy(update={"device": "a toaster", "run_id": "other"}) for one in sweep()]
    page = Page(report.write(write(tmp_path, rows)).read_text())
    assert "No roof: the ceilings of this device are not known" in page.text
    assert "not recorded" in page.text
    assert not page.traces("runtime", name="best L in theory")


def test_figures_are_those_of_the_plots(folder):
    (part,) = runs.find(folder)
    kinds = [(figure.kind, figure.title) for figure in charts.figures(part, "r0", looks(part.rows))]
    assert [kind for kind, _ in kinds].count("roofline") == 1
    assert ("runtime", "Runtime over sequence length T") in kinds
    assert ("memory", "Peak memory over chunk size L") in kinds


# --- numbers and their origin


def test_every_fact_has_a_unit_a_source_and_a_note(page):
    shown = [fact for card in page.payload["cards"].values() for fact in card["facts"]]
    assert {source for _, _, source, _ in shown} == {"measured", "modelled", "modelled / measured"}
    assert {note for *_, note in shown} <= set(range(1, len(formats.NOTES) + 1))
    unitless = {label for label, value, *_ in shown if not re.search(r"\d ?(?!e-)[A-Za-zµ%]", value)}
    assert unitless == {"error against float64"}


def test_every_figure_says_its_sources_and_notes(page):
    figures = page.html.split("<figure ")[1:]
    assert figures
    assert all('class="source' in figure and 'href="#note-' in figure for figure in figures)


@pytest.mark.parametrize(
    ("value", "words"), [(0.0004, "0.40 µs"), (3.244, "3.24 ms"), (718.4, "718 ms"), (71840.0, "71.8 s"), (None, "")]
)
def test_amounts_come_in_the_unit_that_fits(value, words):
    assert formats.amount(value, (("µs", 1e-3), ("ms", 1.0), ("s", 1e3))).replace("0.400", "0.40") == words


@pytest.mark.parametrize(
    ("value", "uncertainty", "words"),
    [
        (2.791, 0.0364, "2.79 ± 0.04"),
        (25.04, 0.51, "25.0 ± 0.5"),
        (0.0388, None, "0.039"),
        (1204.0, 3.0, "1,204 ± 3"),
        (2, 0, "2.000 ± <0.001"),
    ],
)
def test_ratios_are_as_exact_as_they_are(value, uncertainty, words):
    assert formats.ratio(value, uncertainty) == words


# --- headline


def compare(tmp_path, *folders: list[Row]) -> duels.Headline:
    for n, rows in enumerate(folders):
        write(tmp_path / str(n), rows, run=RUN)
    return duels.compare(part.results for part in runs.find(tmp_path))


def test_our_fastest_chunk_size_meets_each_baseline(tmp_path):
    said = compare(tmp_path, [tfla(1.0), tfla(0.8, chunk_size=256), sdpa(2.0), sdpa(4.0, 512), tfla(5.0, 512)])
    assert not said.stand_in
    (verdict,) = said.verdicts
    (against,) = verdict.comparisons
    assert [(duel.ours.seq_len, duel.ours.chunk_size, duel.ratio) for duel in against.duels] == [
        (512, 128, pytest.approx(0.8)),
        (4096, 256, pytest.approx(2.5)),
    ]
    assert (against.median, against.won) == (pytest.approx(1.65), 1)
    assert verdict.slower == 1


def test_rows_of_different_folders_are_not_compared(tmp_path):
    assert compare(tmp_path, [tfla(1.0)], [sdpa(2.0)]).verdicts == ()


def test_a_ratio_of_two_occasions_says_so(tmp_path):
    later = {"run_id": "later"}
    rows = [tfla(1.0), sdpa(2.0), tfla(1.0, 512), sdpa(2.0, 512).model_copy(update=later)]
    folder = write(tmp_path, rows, run=RUN, later=RUN | {"commit": "fedcba987654"})
    (comparison,) = duels.compare(part.results for part in runs.find(folder)).verdicts[0].comparisons
    assert [(duel.ours.seq_len, duel.apart) for duel in comparison.duels] == [(512, True), (4096, False)]
    text = report.write(folder).read_text()
    assert text.count("×†") == 1, "in the words of one point"


def test_an_mlstm_baseline_meets_the_same_gate(tmp_path):
    theirs = row("nxai_exp_xl", 3.0, gate="exp", **MODEL)
    said = compare(tmp_path, [row(ms=1.0), row("tfla_exp_xl", 2.0, gate="exp", **MODEL), theirs])
    assert said.verdicts[0].comparisons[0].duels[0].ratio == pytest.approx(1.5)


def test_a_failed_row_fights_no_duel(tmp_path):
    assert compare(tmp_path, [tfla(1.0), sdpa(None)]).verdicts == ()


def test_pytorch_forms_stand_in_and_the_page_says_so(tmp_path):
    folder = write(tmp_path, [row("reference_sig", 4.0, **MODEL), sdpa(2.0)], run=RUN)
    page = Page(report.write(folder).read_text())
    assert "stand in for them" in page.text
    assert "0.500 × as fast as sdpa , the strongest baseline" in page.text


def test_nothing_to_compare_is_said(tmp_path):
    assert "Nothing to compare" in Page(report.write(write(tmp_path, [sdpa(2.0)])).read_text()).text


# --- tables, environment, commands


def test_what_is_missing_is_listed_with_its_reason(page):
    said = page.text.rpartition("Asked for and not measured")[2].partition("Tables The fastest")[0]
    for status, reason in REASONS.items():
        assert status.replace("_", " ") in said
        assert reason in said


def test_the_commands_that_made_and_redo_the_rows(page, folder):
    assert "tflabench sweep --impl 'tfla*' -a seq_len=512:4096:x2" in page.text
    assert f"tflabench report {folder}" in page.text
    assert f"tflabench plot {folder}" in page.text


def test_the_environment_with_its_ceilings(page):
    for words in ("NVIDIA H200", "580.1", "60.0 MiB", "torch 2.11.0", "0.1.0 (0123456789ab)", "800 TFLOP/s", "a copy"):
        assert words in page.text
    assert "NVIDIA H200 datasheet" in page.text


def test_several_folders_are_one_page(tmp_path):
    for name in ("fig4", "fig5"):
        write(tmp_path / name, sweep(), run=RUN)
    page = Page(report.write(tmp_path).read_text())
    assert len(page.all("id")) == len(set(page.all("id")))
    assert len(page.payload["cards"]) == 2 * len(sweep())
    assert page.text.count("580.1") == 1  # one machine, told once


# --- command line and bad input


def test_the_command_prints_the_file(folder, tmp_path):
    out = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["report", str(folder), "--out", str(out)])
    assert (done.exit_code, done.stdout.split()) == (0, [str(out)])
    assert "MB" in done.stderr


def refused(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(app, ["report", *arguments])
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.strip().splitlines()
    assert says in line


def test_no_folder_no_results_no_rows(tmp_path):
    refused([str(tmp_path / "missing")], "is no folder")
    refused([str(tmp_path)], "holds no results")
    (tmp_path / "journal.jsonl").touch()  # of a sweep that was stopped before its first row
    refused([str(tmp_path)], "holds no rows yet")


def test_rows_of_another_schema(tmp_path):
    (tmp_path / "journal.jsonl").write_text('{"schema_version": 99}\n')
    refused([str(tmp_path)], "row schema 99")


def test_a_place_that_cannot_be_written(folder, tmp_path):
    refused([str(folder), "--out", str(tmp_path / "no" / "page.html")], "cannot be written")


@pytest.mark.parametrize("package", ["plotly", "jinja2"])
def test_a_missing_package_is_named_with_its_remedy(folder, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "tflabench.report.page", raising=False)
    monkeypatch.delattr(report, "page", raising=False)
    for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    refused([str(folder)], f"needs the package {package}, which is not installed: pip install 'tflabench[report]'")


def test_wheels_carry_the_page():
    import tomllib

    root = Path(report.__file__).parents[2]
    globs = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["tflabench"]
    carried = {path for glob in globs for path in (root / "tflabench").glob(glob)}
    here = {*Path(report.__file__).parent.iterdir()}
    assert {path for path in here if path.is_file() and path.suffix != ".py"} == carried & here


# --- in a browser

PROBE = """<script>
const problems = [];
addEventListener("error", (event) => problems.push(event.message));
addEventListener("unhandledrejection", (event) => problems.push(String(event.reason)));
addEventListener("securitypolicyviolation", (event) => problems.push("asked for " + event.blockedURI));
addEventListener("load", () => setTimeout(async () => {
  const plot = document.querySelector(".plot");
  const point = plot.querySelectorAll(".scatterlayer .points path")[0].getBoundingClientRect();
  const at = { bubbles: true, clientX: point.x + point.width / 2, clientY: point.y + point.height / 2 };
  plot.querySelector(".nsewdrag").dispatchEvent(new MouseEvent("mousemove", at));
  await new Promise((done) => setTimeout(done, 500));
  const card = document.getElementById("card");
  document.body.dataset.probe = JSON.stringify({
    problems,
    theme: document.documentElement.dataset.theme,
    paper: getComputedStyle(document.body).backgroundColor,
    drawn: document.querySelectorAll(".plot .main-svg").length > 0,
    card: card.hidden ? "" : card.innerText,
    sdpa: plot.data.filter(({ meta, error_y }) => error_y && meta.includes("sdpa")).map(({ visible }) => visible),
    colours: [...new Set(plot.data.map((trace) => trace.line?.color.slice(0, 7)))],
    rows: [...document.querySelectorAll("tr[data-kernel=sdpa]")].map((line) => getComputedStyle(line).display),
    wide: document.documentElement.scrollWidth > innerWidth,
  });
}, 2000));
</script></head>"""
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = (
    "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update --disable-sync "
    "--no-first-run --virtual-time-budget=8000"
).split()


def browse(page: Page, folder: Path, *options: str, address: str = "") -> str:
    """What the browser prints after it has opened the page, with a probe in it."""
    assert CHROMIUM
    (folder / "probe.html").write_text(page.html.replace("</head>", PROBE, 1))
    command = [
        CHROMIUM,
        *QUIET,
        f"--user-data-dir={folder / 'profile'}",
        *options,
        f"file://{folder}/probe.html{address}",
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.skipif(not CHROMIUM, reason="needs chromium")
@pytest.mark.parametrize(("address", "width"), [("", 1400), ("#theme=dark&hide=sdpa", 500)])
def test_in_a_browser(page, tmp_path, address, width):
    dark = "dark" in address
    dom = browse(page, tmp_path, f"--window-size={width},1000", "--dump-dom", address=address)
    found = json.loads(Page(dom).all("data-probe")[0])
    assert found["problems"] == []
    assert found["drawn"]
    assert not found["wide"], "the page must not scroll sideways"
    assert found["theme"] == ("dark" if dark else "light")
    assert found["paper"] == ("rgb(22, 25, 30)" if dark else "rgb(255, 255, 255)")
    assert found["sdpa"] == [not dark], "the filter hides sdpa where the address says so"
    assert set(found["rows"]) == ({"none"} if dark else {"table-row"})
    assert bool(set(found["colours"]) & {"#000000"}) != dark
    assert "measured, note 1" in found["card"]


@pytest.mark.skipif(not CHROMIUM, reason="needs chromium")
def test_prints_every_figure(page, tmp_path):
    paper = tmp_path / "page.pdf"
    browse(page, tmp_path, "--no-pdf-header-footer", f"--print-to-pdf={paper}", address="#theme=dark")
    assert paper.stat().st_size > 100_000


@pytest.fixture(autouse=True)
def _quiet_threads(monkeypatch):
    monkeypatch.setitem(os.environ, "OMP_NUM_THREADS", "1")


def test_a_call_that_waits_for_the_host_says_so():
    assert formats.host(0.2, 1.0) == "200 µs"
    assert formats.host(1.25, 1.0) == "1.25 ms, longer than the call"
    assert formats.host(float("nan"), 1.0) == ""
