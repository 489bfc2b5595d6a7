"""The report in a real browser: Chromium without a window, driven through its DevTools protocol."""

import base64
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedprox
from browser import Browser, needs_chromium, wait_for
from fedprox.report import write_report

pytestmark = [needs_chromium, pytest.mark.slow]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    plan = {"rounds": 6, "devices": {"stragglers": 0.5}, "solver": {"epochs": 3}}
    for method in ({"name": "fedavg"}, {"name": "fedprox", "mu": "adaptive", "mu_initial": 0.5}):
        for seed in (0, 1):
            fedprox.train(plan | {"method": method, "seed": seed}, out=folder / method["name"] / f"seed-{seed}")
    return write_report([folder], folder / "report.html")


def test_draws_every_picture_without_complaint_or_request(browser: Browser, page: Path) -> None:
    browser.look(width=1280, height=900, scheme="light")
    browser.open(page)
    drawn = browser.run("[...document.querySelectorAll('.plot')].map(p => [p.id, p.querySelectorAll('.trace').length])")
    names = {name for name, _ in drawn}
    assert {"plot-train_loss", "plot-test_accuracy", "plot-mu", "plot-participation", "plot-fairness"} <= names
    assert [name for name, traces in drawn if traces == 0] == []
    assert browser.complaints() == []
    assert [url for url in browser.requests() if not url.startswith(("file:", "data:", "blob:"))] == []


def test_a_click_in_the_legend_hides_the_curve_and_its_band(browser: Browser, page: Path) -> None:
    browser.look(width=1280, height=900, scheme="light")
    browser.open(page)
    visible = "[...document.querySelectorAll('#plot-train_loss .scatterlayer .trace')].length"
    before = browser.run(visible)
    assert before == 4  # two curves, each with its band
    entry = browser.run(
        "(() => { const e = document.querySelector('#plot-train_loss .legendtoggle');"
        "e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect();"
        "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
    )
    browser.click(*entry)
    wait_for(lambda: browser.run(visible) == before - 2)
    assert browser.complaints() == []


def test_the_choice_of_a_run_changes_the_picture_of_participation(browser: Browser, page: Path) -> None:
    browser.open(page)
    symbols = "document.getElementById('plot-participation').data.map(trace => trace.name)"
    assert "dropped" in browser.run(symbols)  # FedAvg first
    browser.run(
        "(() => { const c = document.getElementById('choose-run'); c.value = '2';"
        "c.dispatchEvent(new Event('change')); })()"
    )
    assert browser.run(symbols) == ["all of its work", "straggler, partial work kept"]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_fits_the_screen_in_light_and_dark(
    browser: Browser, page: Path, tmp_path: Path, width: int, scheme: str
) -> None:
    browser.look(width=width, height=900, scheme=scheme)
    browser.open(page)
    assert browser.run("document.documentElement.scrollWidth") <= width
    ink, paper = browser.run("[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]")
    title = browser.run("document.querySelector('#plot-train_loss .xtitle').style.fill")
    assert title == ink
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
    folder = Path(os.environ.get("FEDPROX_SCREENSHOTS", tmp_path))
    browser.screenshot(folder / f"report-{width}-{scheme}.png")
    assert (folder / f"report-{width}-{scheme}.png").stat().st_size > 20_000


def test_prints_on_paper(browser: Browser, page: Path, tmp_path: Path) -> None:
    browser.look(width=1280, height=900, scheme="dark")
    browser.open(page)
    printed = base64.b64decode(browser.send("Page.printToPDF", printBackground=False)["data"])
    assert printed.startswith(b"%PDF")
    assert len(printed) > 20_000
    folder = Path(os.environ.get("FEDPROX_SCREENSHOTS", tmp_path))
    (folder / "report.pdf").write_bytes(printed)
