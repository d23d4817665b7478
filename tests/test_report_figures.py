"""`tflabench report`: the page needs only a browser, and its figures draw what the rows say."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tflabench import report
from tflabench.figures.style import looks
from tflabench.report import charts
from tflabench.report import folders as runs

sys.path.insert(0, str(Path(__file__).parent))
from report_page import REASONS, RUN, Page, page_of, sdpa, sweep, tfla, unpacked
from synthetic import write


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("report") / "fig4", sweep(), run=RUN)


@pytest.fixture(scope="module")
def page(folder) -> Page:
    return page_of(folder)


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


def test_times_of_wrong_results_are_open_and_in_no_conclusion(page):
    wrong = {
        index for index, card in page.payload["cards"].items() if card["remarks"] == [f"wrong: {REASONS['wrong']}"]
    }
    assert len(wrong) == 1
    assert all(page.payload["cards"][index]["facts"] for index in wrong)

    def colours(kind: str) -> list[str]:
        return [
            colour
            for trace in page.traces(kind, mode="lines+markers")
            for index, colour in zip(trace.get("customdata", ()), trace["marker"]["color"], strict=False)
            if str(index) in wrong
        ]

    assert colours("runtime") == colours("memory") == ["#ffffff"]
    for kind in ("chunk", "roofline"):
        assert not [
            index for trace in page.traces(kind) for index in trace.get("customdata", ()) if str(index) in wrong
        ]


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
    untimed = {status: reason for status, reason in REASONS.items() if status != "wrong"}
    assert {f"{status.replace('_', ' ')}: {reason}" for status, reason in untimed.items()} <= shown


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
    page = page_of(write(tmp_path, [sdpa(2.0), tfla(1.0), tfla(None, name="tfla_exp_xl")], run=RUN))
    marks = page.traces("runtime", mode="markers+text")
    assert sorted((trace["x"][0], trace["text"][0].strip()) for trace in marks) == [(1.0, "1.00"), (2.0, "2.00")]
    assert [trace["text"][0].strip() for trace in page.traces("runtime", mode="text")] == ["oom"]


def test_where_nothing_was_measured_a_figure_says_so(tmp_path):
    folder = write(tmp_path, [tfla(None, T) for T in (512, 1024)], run=RUN)
    plots = page_of(folder).payload["plots"]
    (said,) = plots["r0-runtime-seq_len-0"]["layout"]["annotations"]
    assert said["text"] == "no point was measured"


def test_an_unknown_device_has_no_roof_and_says_so(tmp_path):
    rows = [one.model_copy(update={"device": "a toaster", "run_id": "other"}) for one in sweep()]
    page = page_of(write(tmp_path, rows))
    assert "No roof: the ceilings of this device are not known" in page.text
    assert "not recorded" in page.text
    assert not page.traces("runtime", name="best L in theory")


def test_figures_are_those_of_the_plots(folder):
    (part,) = runs.find(folder)
    kinds = [(figure.kind, figure.title) for figure in charts.figures(part, "r0", looks(part.rows))]
    assert [kind for kind, _ in kinds].count("roofline") == 1
    assert ("runtime", "Runtime over sequence length T") in kinds
    assert ("memory", "Peak memory over chunk size L") in kinds


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
