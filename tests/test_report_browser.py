"""The report in a real browser: Chromium without a window, driven through its DevTools protocol."""

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedprox
from fedprox.report import write_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
websocket = pytest.importorskip("websocket", reason="websocket-client is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: the report is not drawn")


class Browser:
    """One page of a headless Chromium."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        self.process = subprocess.Popen(
            [CHROMIUM, *options, "--remote-debugging-port=0", "--remote-allow-origins=*", f"--user-data-dir={profile}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        port_file = profile / "DevToolsActivePort"
        wait_for(port_file.exists)
        wait_for(lambda: len(port_file.read_text().split()) == 2)
        port, path = port_file.read_text().split()
        self.socket = websocket.create_connection(f"ws://127.0.0.1:{port}{path}", timeout=60)
        self.events: list[dict] = []
        self.last = 0
        self.session: str | None = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: object) -> dict:
        self.last += 1
        message = {"id": self.last, "method": method, "params": parameters}
        self.socket.send(json.dumps(message | ({"sessionId": self.session} if self.session else {})))
        while True:
            answer = json.loads(self.socket.recv())
            if answer.get("id") == self.last:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def run(self, script: str) -> object:
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def open(self, file: Path) -> None:
        self.events.clear()
        self.send("Page.navigate", url=file.resolve().as_uri())
        wait_for(lambda: self.run("document.documentElement?.dataset.drawn") == "yes")

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def look(self, *, width: int, height: int, scheme: str) -> None:
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, file: Path) -> None:
        image = self.send("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(image["data"]))

    def complaints(self) -> list[dict]:
        bad = [event for event in self.events if event["method"] == "Runtime.exceptionThrown"]
        for event in self.events:
            level = event.get("params", {}).get("entry", {}).get("level") or event.get("params", {}).get("type")
            if event["method"] in ("Log.entryAdded", "Runtime.consoleAPICalled") and level in ("error", "warning"):
                bad.append(event)
        return bad

    def requests(self) -> list[str]:
        sent = [event for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def close(self) -> None:
        self.socket.close()
        self.process.terminate()
        self.process.wait(timeout=20)


def wait_for(condition, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


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
