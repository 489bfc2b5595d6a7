"""The report's curves in a browser while runs are in progress: `fedprox watch RUN --serve`.

The server listens on the loopback interface alone, and answers only under an address that holds a random token, so
that other users and pages in the browser cannot read it. It uses Python's standard library; nothing is loaded from
elsewhere.
"""

from __future__ import annotations

import html
import json
import secrets
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fedprox.core.errors import ConfigError, FedProxError
from fedprox.report.experiment_line import experiment_line
from fedprox.report.figures import axis_figures, curve_figures
from fedprox.report.page import card, grid, page
from fedprox.report.verdict import verdict
from fedprox.report.watch import RunStatus, states, text_line
from fedprox.runs.reader import find_runs
from fedprox.runs.seed_groups import group_runs

__all__ = ["LiveServer", "live_data", "live_page"]

_NOT_YET = "No round has been measured yet; this page updates itself."


def live_data(path: Path) -> dict[str, Any]:
    """Return what the page shows of the runs in `path` at this moment."""
    measured = group_runs(run for run in find_runs([path]) if len(run.history))
    current = states(path)
    return {
        "figures": [*curve_figures(measured), *axis_figures(measured)] if measured else [],
        "verdict": verdict(measured) if measured else [_NOT_YET],
        "about": experiment_line(measured) if measured else "",
        "states": [text_line(state) for state in current],
        "progress": _progress(current),
    }


def live_page(path: Path) -> str:
    """Return the page; it asks for `data`, next to its own address, once a second."""
    now = live_data(path)
    sections = [
        f'<p class="note" id="live-about">{html.escape(now["about"])}</p>',
        f'<p id="live-progress">{html.escape(now["progress"])}</p>',
        '<div class="verdict" id="live-verdict">' + _paragraphs(now["verdict"]) + "</div>",
        "<h2>Curves</h2>" + grid(*(card(figure) for figure in now["figures"])),
        '<h2>Runs</h2><div id="live-states">' + _paragraphs(now["states"]) + "</div>",
    ]
    return page(
        f"fedprox watch: {path.absolute().name}", sections, {"figures": now["figures"], "live": True}, live=True
    )


class LiveServer:
    """A server of the live page for the runs in `path`.

    >>> import tempfile, fedprox
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = fedprox.train({"rounds": 1, "data": {"devices": 10}}, out=f"{folder}/run")
    ...     with LiveServer(f"{folder}/run") as server:
    ...         server.address.startswith("http://127.0.0.1:")
    True
    """

    def __init__(self, path: str | Path, port: int = 0) -> None:
        find_runs([path])  # refuses a folder that holds no run
        self.path, self.token = Path(path), secrets.token_urlsafe(24)
        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        except OSError as error:
            raise ConfigError(f"`--port` must be a free port; {port} cannot be used: {error.strerror}") from None
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self.address = f"http://127.0.0.1:{self.port}/{self.token}/"

    def __enter__(self) -> LiveServer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(server: LiveServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers requests for the page and its data; all others are not found."""

        def do_GET(self) -> None:
            try:
                if not self._is_ours():
                    self._answer(404, "text/plain", "not found\n")
                elif self.path.endswith("/data"):
                    content = json.dumps(live_data(server.path), allow_nan=False)
                    self._answer(200, "application/json", content)
                else:
                    self._answer(200, "text/html; charset=utf-8", live_page(server.path))
            except FedProxError as error:  # a folder that was removed, or is being written for the first time
                self._answer(503, "text/plain; charset=utf-8", f"{error}\n")

        def log_message(self, format: str, *arguments: Any) -> None:
            """Print nothing."""

        def _is_ours(self) -> bool:
            """Return whether the address has the token, and the request was made under the server's own name."""
            wanted = (f"/{server.token}/", f"/{server.token}/data")
            known = any(secrets.compare_digest(self.path.encode(), path.encode()) for path in wanted)
            hosts = (f"127.0.0.1:{server.port}", f"localhost:{server.port}")
            return known and self.headers.get("Host") in hosts

        def _answer(self, status: int, kind: str, text: str) -> None:
            content = text.encode("utf-8", "backslashreplace")  # names of folders may be any bytes
            self.send_response(status)
            for name, value in (
                ("Content-Type", kind),
                ("Content-Length", str(len(content))),
                ("Cache-Control", "no-store"),
                ("Referrer-Policy", "no-referrer"),
                ("X-Content-Type-Options", "nosniff"),
            ):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

    return Handler


def _progress(current: Sequence[RunStatus]) -> str:
    running = sum(state.state == "running" for state in current)
    done, rounds = sum(state.round for state in current), sum(state.rounds for state in current)
    return f"{len(current)} {'run' if len(current) == 1 else 'runs'}, {running} under way; {done} of {rounds} rounds"


def _paragraphs(lines: Sequence[str]) -> str:
    return "".join(f"<p>{html.escape(line)}</p>" for line in lines)
