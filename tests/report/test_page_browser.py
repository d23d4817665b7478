"""The page of `tflabench report` in a headless Chromium: Debian's, which `.ci/run` installs where it may."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report_page import HOSTILE, LATEX, RUN, Page, sdpa, sweep, tfla
from repository import ROOT
from synthetic import write

from tflabench.report import page as report

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install -e '.[dev]'")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: as root, apt-get install chromium")
RESULTS = ROOT / "results"
DESK = {"width": 1280, "height": 800}
PIXEL = """([trace, point]) => {
  const plot = document.getElementById("plot"), { xaxis, yaxis, _size } = plot._fullLayout;
  const box = plot.getBoundingClientRect(), one = plot.data[trace];
  return [box.left + _size.l + xaxis.d2p(one.x[point]), box.top + _size.t + yaxis.d2p(one.y[point])];
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> dict[str, Path]:
    """Pages by name: of an H100's rows; made-up ones with every status, two lengths, or names that are no words."""
    folder = tmp_path_factory.mktemp("pages")
    names = [tfla(ms, T, name) for name, ms in ((HOSTILE, 1.0), (LATEX, 2.0), ("n" * 60, 3.0)) for T in (512, 1024)]
    names += [sdpa(None, T).model_copy(update={"reason": HOSTILE}) for T in (512, 1024)]
    folders = {
        "h100": RESULTS / "h100" / "quick",
        "statuses": write(folder / "statuses", sweep(), run=RUN),
        "lengths": write(folder / "lengths", [tfla(1.0, 512), tfla(1.0, 4096)]),
        "names": write(folder / "names", names),
    }
    return {name: report.write(path, folder / f"{name}.html") for name, path in folders.items()}


@pytest.fixture(scope="module")
def kept() -> tuple[dict[Any, Any], list[str]]:
    """The pages that are open, by how they were opened, and what failed in them."""
    return {}, []


@pytest.fixture
def opened(browser, written, kept) -> Iterator[Any]:
    """Open a page by name, or take the one that was opened so before; nothing may fail in it or ask the network."""
    pages, problems = kept

    def open_(name: str | Path, hash_: str = "") -> Any:
        key = (name, hash_)
        if key not in pages:
            page = pages[key] = browser.new_page(viewport=DESK)
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
            page.on("dialog", lambda dialog: problems.append(f"a dialog: {dialog.message}"))
            page.on("request", lambda asked: problems.append(asked.url) if asked.url.startswith("http") else None)
            page.goto(f"file://{name if isinstance(name, Path) else written[name]}{hash_}")
            page.wait_for_selector("html[data-ready]")
        return pages[key]

    yield open_
    assert problems == []


def texts(page: Any, selector: str) -> list[str]:
    return page.locator(selector).all_inner_texts()


# --- selecting


def test_a_selection_changes_the_chart_and_its_link_keeps_it(opened):
    page = opened("h100")
    page.select_option("#pick-pass", "forward")
    first = page.inner_text("#head"), page.inner_text("#plot")
    page.select_option("#pick-pass", "forward + backward")
    page.select_option("#pick-view", "peak memory over T")
    assert (page.inner_text("#head"), page.inner_text("#plot")) != first
    assert "forward + backward" in page.inner_text("#head")
    assert "peak memory" in page.inner_text("#plot")
    again = opened("h100", page.evaluate("location.hash"))
    assert again.input_value("#pick-view") == "peak memory over T"
    assert again.inner_text("#head") == page.inner_text("#head")


def test_every_selection_draws(opened, written):
    page = opened("h100")
    for view in page.locator("#pick-view option").all_inner_texts():
        page.select_option("#pick-view", view)
        for size in page.locator("#pick-size option").all_inner_texts():
            page.select_option("#pick-size", size)
            page.wait_for_selector("#plot .trace, #plot .annotation", state="attached", timeout=5000)


# --- hovering


def test_hovering_meets_the_point_before_the_band(opened, written):
    page = opened("statuses")
    held = Page(written["statuses"].read_text())
    traces = page.evaluate("plot.data.map(({ fill, customdata, marker, name }) => [fill, customdata, marker && name])")
    assert any(fill for fill, *_ in traces)
    assert any(named for *_, named in traces)
    for trace, (_, rows, named) in enumerate(traces):
        if rows and named and len(rows) > 1:  # those in the background may lie outside of the axes
            page.mouse.move(*page.evaluate(PIXEL, [trace, 1]))
            page.wait_for_selector("#card:not([hidden])")
            said = page.inner_text("#card")
            assert held.cell("title", rows[1]) in said
            assert f"{held.cell('ms_median', rows[1]):.4g}".rstrip("0").rstrip(".") in said
            page.mouse.move(5, 5)
            page.wait_for_selector("#card", state="hidden")


# --- all rows


def test_filters_sorting_and_pages_of_the_table(opened, written):
    page = opened("h100", "#open=fold-rows")
    page.click("#clear")
    held = Page(written["h100"].read_text())
    total = len(held.columns["pass"]["values"])
    assert page.inner_text("#count") == f"1 to 50 of {total} rows"
    page.click("#next")
    assert page.inner_text("#count") == f"51 to 100 of {total} rows"
    page.fill("#filter-seq_len", ">=4096")
    wanted = sum(value >= 4096 for value in held.columns["seq_len"]["values"])
    assert page.inner_text("#count").endswith(f"of {wanted} rows")
    page.fill("#filter-pass", "backward")
    assert all("backward" in line for line in texts(page, "#rows tbody tr"))
    place = texts(page, "#rows thead tr:first-child th").index("median [ms]") + 1

    def times() -> list[float]:
        return [float(one) for one in texts(page, f"#rows tbody td:nth-child({place})") if one]

    assert len(times()) > 5
    assert times() == sorted(times()), "from the start"
    page.click("#sort-ms_median")
    assert times() == sorted(times(), reverse=True)
    page.keyboard.press("Enter")
    assert times() == sorted(times())
    page.fill("#filter-pass", "no such pass")
    assert page.inner_text("#count") == "no row fits the filters"


def test_only_this_and_hide_act_on_chart_and_table(opened, written, tmp_path):
    page = opened("h100", "#open=fold-rows")
    page.click("#clear")
    held = Page(written["h100"].read_text())
    name, label = page.evaluate("(({ meta, name }) => [meta, name])(plot.data.find(({ name, meta }) => name && meta))")
    assert label in page.locator("#plot .legendtext").all_text_contents()
    names = [held.cell("implementation", n) for n in range(len(held.columns["pass"]["values"]))]
    shown = "plot.data.filter(({ meta, visible }) => meta && visible).map(({ meta }) => meta)"
    page.select_option("#kernel", name)
    page.click("#hide")
    assert name not in page.evaluate(shown)
    assert label not in page.locator("#plot .legendtext").all_text_contents()
    assert page.inner_text("#count").endswith(f"of {len(names) - names.count(name)} rows")
    page.select_option("#kernel", name)
    page.click("#only")
    assert set(page.evaluate(shown)) == {name}
    assert page.inner_text("#count").endswith(f"of {names.count(name)} rows")
    with page.expect_download() as download:
        page.click("#csv")
    download.value.save_as(tmp_path / "rows.csv")
    lines = (tmp_path / "rows.csv").read_text().splitlines()
    assert (len(lines), lines[0].split(",")[0]) == (names.count(name) + 1, "kernel")
    page.click("#clear")
    assert page.inner_text("#count").endswith(f"of {len(names)} rows")


# --- names


FOLDS = "#open=fold-rows+fold-roofline+fold-machines+fold-commands"


def test_names_are_words_whatever_they_hold(opened):
    page = opened("names", FOLDS)
    assert page.locator("img, #plot b").count() == 0
    assert HOSTILE[:10] in page.inner_text("#plot")
    assert LATEX[:10] in page.inner_text("#plot")
    assert HOSTILE in page.inner_text("#rows")
