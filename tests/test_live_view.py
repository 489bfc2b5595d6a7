"""The live view: who is answered, what is sent, and curves that move in a real browser while a run is under way."""

import http.client
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedprox
from browser import Browser, needs_chromium, wait_for
from fedprox.report.live import LiveServer

PLAN = {"rounds": 3, "solver": {"epochs": 1}, "data": {"devices": 12}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("live") / "<b>run"
    fedprox.train(PLAN, out=folder)
    with LiveServer(folder) as server:
        yield server


def ask(server: LiveServer, path: str, host: str = "", method: str = "GET") -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request(method, path, headers={"Host": host or f"127.0.0.1:{server.port}"})
    answer = connection.getresponse()
    content = answer.read().decode()
    connection.close()
    return answer.status, content, dict(answer.headers)


def test_only_the_address_with_the_token_is_answered(server: LiveServer) -> None:
    assert len(server.token) >= 32
    status, content, headers = ask(server, f"/{server.token}/")
    assert status == 200
    assert "connect-src 'self'" in content
    assert "<b>run" not in content
    assert headers["Cache-Control"] == "no-store"
    for path in ("/", "/data", f"/{server.token}", f"/{server.token}x/data", f"/{server.token}/../etc/passwd"):
        assert ask(server, path)[0] == 404
    assert ask(server, f"/{server.token}/data", host="evil.example")[0] == 404  # a name that was led to this address
    assert ask(server, f"/{server.token}/", method="POST")[0] == 501


def test_the_data_are_the_figures_of_the_report(server: LiveServer) -> None:
    status, content, _ = ask(server, f"/{server.token}/data")
    data = json.loads(content)
    assert status == 200
    losses = next(figure for figure in data["figures"] if figure["name"] == "train_loss")
    assert losses["data"][0]["x"] == [0, 1, 2, 3]
    assert data["progress"] == "1 run, 0 under way; 3 of 3 rounds"
    assert data["states"][0].startswith("<b>run: finished, round 3 of 3")


def test_other_machines_cannot_connect(server: LiveServer) -> None:
    assert server._server.server_address[0] == "127.0.0.1"


def test_a_folder_that_goes_away_and_one_without_runs(tmp_path: Path) -> None:
    with pytest.raises(fedprox.FedProxError, match="holds none"):
        LiveServer(tmp_path)
    fedprox.train(PLAN, out=tmp_path / "run")
    with LiveServer(tmp_path / "run") as server:
        (tmp_path / "run").rename(tmp_path / "gone")
        status, content, _ = ask(server, f"/{server.token}/data")
        assert (status, content.count("\n")) == (503, 1)
        with pytest.raises(fedprox.FedProxError, match="must be a free port"):
            LiveServer(tmp_path / "gone", server.port)


def test_the_command_prints_the_address_and_ends_with_an_interrupt(tmp_path: Path) -> None:
    fedprox.train(PLAN, out=tmp_path / "run")
    command = [sys.executable, "-m", "fedprox", "watch", str(tmp_path / "run"), "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        process.send_signal(2)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")


@needs_chromium
@pytest.mark.slow
def test_curves_move_while_a_run_is_under_way(tmp_path: Path) -> None:
    goes_on, measured = threading.Event(), threading.Event()

    def step(progress: fedprox.Progress) -> bool:
        measured.set()
        goes_on.wait(timeout=120)
        return False

    run = threading.Thread(
        target=fedprox.train, args=({**PLAN, "rounds": 5},), kwargs={"out": tmp_path / "run", "callbacks": [step]}
    )
    run.start()
    assert measured.wait(timeout=120)  # round 0, the initial model
    browser = Browser(tmp_path / "profile")
    points = "document.getElementById('plot-train_loss').data[0].x"
    try:
        with LiveServer(tmp_path / "run") as server:
            browser.open(server.address)
            assert browser.run(points) == [0]
            assert "1 under way" in browser.run("document.getElementById('live-progress').textContent")
            goes_on.set()
            wait_for(lambda: browser.run(points) == [0, 1, 2, 3, 4, 5])
            wait_for(lambda: "finished" in browser.run("document.getElementById('live-states').textContent"))
            assert browser.complaints() == []
            assert all(url.startswith((server.address, "data:", "blob:")) for url in browser.requests())
        wait_for(lambda: "No longer updated" in browser.run("document.getElementById('live-progress').textContent"))
    finally:
        goes_on.set()
        run.join()
        browser.close()
