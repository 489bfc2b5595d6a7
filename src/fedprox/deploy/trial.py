"""A real federation on one machine: one SuperLink, some SuperNodes, TLS and keys.

Every process is started in a session of its own and ended with it; ports are free ones; Flower's own folder, the keys
and the logs are inside the trial's folder. Nothing is reachable from outside this machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from fedprox.core.child_processes import ending_with_parent
from fedprox.core.errors import RunError
from fedprox.core.extras import MissingExtraError
from fedprox.deploy.keys import write_keys
from fedprox.deploy.log_errors import last_error
from fedprox.deploy.trial_folder import KEYS
from fedprox.runs.folder import is_running

__all__ = ["Trial"]

_CONNECTION = "trial"
_START_SECONDS = 180.0  # for the SuperLink, and for the nodes, also on a machine that is busy
_LOOK = 10.0  # seconds between two checks whether a server has failed


class Trial:
    """A federation on this machine.

    Args:
      folder: where Flower's files, keys and logs go; it must not hold an earlier trial.
      nodes: how many SuperNodes; node k is device k.
      secure: TLS, and nodes that prove who they are with a registered key.
    """

    def __init__(self, folder: Path, nodes: int, *, secure: bool = True) -> None:
        if shutil.which("flower-superlink", path=_path()) is None:
            raise MissingExtraError("`fedprox deploy trial`", "flower")
        self.folder, self.nodes, self.secure = folder.absolute(), nodes, secure
        self.keys = self.folder / KEYS
        self.node_ids: list[int] = []  # of the registered keys, by device
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {
            **os.environ,
            "PATH": _path(),
            "FLWR_HOME": str(self.folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        }

    def __enter__(self) -> Trial:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the SuperLink and the nodes, and wait until all are connected."""
        (self.folder / "flwr").mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        self.port = _free_port()
        connection = (
            f'[superlink]\ndefault = "{_CONNECTION}"\n\n[superlink.{_CONNECTION}]\naddress = "{self.address}"\n'
        )
        if self.secure:
            write_keys(self.keys, nodes=self.nodes)
            connection += f'root-certificates = "{self.keys / "ca.crt"}"\n'
        else:
            connection += "insecure = true\n"
        (self.folder / "flwr" / "config.toml").write_text(connection, encoding="utf-8")
        self._start(
            "superlink",
            "flower-superlink",
            *self._server_options(),
            *("--host", "127.0.0.1", "--port", str(self.port), "--disable-runtime-dependency-installation"),
        )
        self._wait_for_port()
        if self.secure:
            for number in range(self.nodes):
                public = str(self.keys / f"node{number}.pub")
                answer = self.flwr("supernode", "register", public, _CONNECTION, "--format", "json")
                self.node_ids.append(int(answer["node-id"]))
        for number in range(self.nodes):
            self.start_node(number)
        self._wait_for_nodes()

    @property
    def address(self) -> str:
        """Where the SuperLink listens."""
        return f"127.0.0.1:{self.port}"

    def start_node(self, number: int, *, key: Path | None = None, name: str = "") -> subprocess.Popen[bytes]:
        """Start the SuperNode of a device, with its own key or another one."""
        return self._start(
            name or f"node{number}",
            "flower-supernode",
            *self._node_options(key or self.keys / f"node{number}"),
            *("--superlink", self.address, "--port", str(_free_port())),
            *("--node-config", f"partition-id={number} num-partitions={self.nodes}"),
        )

    def submit(self, app: Path, run_config: Mapping[str, Any] | None = None) -> str:
        """Hand an app to the SuperLink, which starts it at once, and return the number of the run."""
        given = dict(run_config or {})
        if self.node_ids:  # each number belongs to its key
            bound = ",".join(map(str, self.node_ids))
            given["set"] = f"{given.get('set', '')} deploy.nodes=[{bound}]".strip()
        settings = [f"{key}={_quoted(value)}" for key, value in given.items()]
        options = ["--run-config", " ".join(settings)] if settings else []
        return str(self.flwr("run", str(app.absolute()), _CONNECTION, "--format", "json", *options).get("run-id", ""))

    def python_errors(self) -> dict[str, str]:
        """Return the last traceback in the log of each node that has one, by the node's name."""
        names = [f"node{number}" for number in range(self.nodes)]
        found = {name: last_error(self.log(name)) for name in names if (self.folder / f"{name}.log").exists()}
        return {name: error for name, error in found.items() if error is not None}

    def failure(self, run: str) -> str | None:
        """Return why the server of a run has failed, or None where it has not; this takes seconds."""
        known = self.flwr("list", _CONNECTION, "--run-id", run, "--format", "json").get("runs", [])
        failed = [one for one in known if one.get("status") == "finished:failed"]
        return str(failed[0].get("status-details", "")) if failed else None

    def run(
        self, app: Path, out: Path, run_config: Mapping[str, Any] | None = None, *, start_seconds: float = 120
    ) -> None:
        """Run an app to its end; `out` is the run folder that its server writes."""
        before = _written(out / "summary.json")  # of the part of the run that is to be continued
        number = self.submit(app, {"out": str(out.absolute()), **(run_config or {})})
        submitted = looked = time.monotonic()
        while not is_running(out):
            if _written(out / "summary.json") not in (None, before):
                return
            now = time.monotonic()
            if now > submitted + start_seconds:
                raise RunError(f"the server of {app} must start within {start_seconds:g} seconds; {self._last_words()}")
            if now > looked + _LOOK:
                if (why := self.failure(number)) is not None:
                    raise RunError(f"the server of {app} has failed: {why}")
                looked = time.monotonic()
            time.sleep(0.1)
        while is_running(out):
            time.sleep(0.2)
        if _written(out / "summary.json") in (None, before):
            why = self.failure(number)
            resume = "; --resume continues it" if why is None and (out / "config.toml").exists() else ""
            raise RunError(f"the server of {app} ended before its run did{resume}: {why or self._last_words()}")

    def flwr(self, *arguments: str) -> dict[str, Any]:
        """Call `flwr` and return what it answers; with `--format json` it fails with exit code 0."""
        command = [str(shutil.which("flwr", path=_path())), *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            answer = {"success": done.returncode == 0}
        if done.returncode != 0 or not answer.get("success", True):
            said = answer.get("error-message") or done.stdout + done.stderr
            raise RunError(f"`flwr {' '.join(arguments[:2])}` failed: {' '.join(said.split())[-500:]}")
        return answer

    def log(self, name: str) -> str:
        """Return the output of a process so far."""
        return (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def end(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        """End a process and those it has started."""
        process = self._processes.pop(name)
        _signal_group(process.pid, number)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            _signal_group(process.pid, signal.SIGKILL)
            process.wait()
        _signal_group(process.pid, signal.SIGKILL)  # what it started and left behind

    def stop(self) -> None:
        """End everything that was started, the nodes first."""
        for name in reversed(list(self._processes)):
            self.end(name)
        end = time.monotonic() + 10
        while (left := self.left_over()) and time.monotonic() < end:
            time.sleep(0.1)  # a SuperExec has a session of its own, and leaves when it notices that its parent is gone
        for process in left:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(process, signal.SIGKILL)
        shutil.rmtree(self.keys, ignore_errors=True)  # they were for this trial; the logs of a failed one stay

    def left_over(self) -> list[int]:
        """Return the processes that belong to this trial, by its folder in their environment."""
        mark = f"FLWR_HOME={self.folder / 'flwr'}".encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    found.append(int(process.name))
            except OSError:
                continue  # it has ended, or is another user's
        return [process for process in found if process != os.getpid()]

    def _start(self, name: str, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [str(shutil.which(program, path=_path())), *arguments]
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                ending_with_parent(command, os.getpid()),
                env=self.environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._processes[name] = process
        return process

    def _server_options(self) -> list[str]:
        if not self.secure:
            return ["--insecure"]
        files = {"ssl-ca-certfile": "ca.crt", "ssl-certfile": "server.pem", "ssl-keyfile": "server.key"}
        return [f"--{option}={self.keys / file}" for option, file in files.items()] + ["--enable-supernode-auth"]

    def _node_options(self, key: Path) -> list[str]:
        if not self.secure:
            return ["--insecure"]
        return [f"--root-certificates={self.keys / 'ca.crt'}", f"--auth-supernode-private-key={key}"]

    def _wait_for_port(self, seconds: float = _START_SECONDS) -> None:
        end = time.monotonic() + seconds
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                if self._processes["superlink"].poll() is not None:
                    raise RunError(f"the SuperLink did not start; {self._last_words()}") from None
                if time.monotonic() > end:
                    raise RunError(
                        f"the SuperLink must be reachable within {seconds:g} seconds; it is not, and the machine "
                        f"may be too busy: try again; {self._last_words()}"
                    ) from None
                time.sleep(0.1)
            else:
                return

    def _wait_for_nodes(self, seconds: float = _START_SECONDS) -> None:
        end = time.monotonic() + seconds
        for number in range(self.nodes):
            while "SuperNode ID" not in self.log(f"node{number}"):
                if self._processes[f"node{number}"].poll() is not None or time.monotonic() > end:
                    raise RunError(f"node {number} did not connect: {self.log(f'node{number}').strip()[-300:]}")
                time.sleep(0.1)

    def _last_words(self) -> str:
        lines = self.log("superlink").strip().splitlines()[-5:]
        said = "\n".join(["", *(line[:300] for line in lines)]) if lines else " nothing"
        return f"the last lines of the SuperLink's log ({self.folder / 'superlink.log'}):{said}"


def _path() -> str:
    """Return the search path with this Python's own programs first: Flower starts its parts by name."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _written(file: Path) -> int | None:
    """Return when a file was written, or None where there is none."""
    return file.stat().st_mtime_ns if file.exists() else None


def _quoted(value: Any) -> str:
    """Return a value for a run config: TOML, of which Flower ends a string at its first quotation mark."""
    if not isinstance(value, (str, bool)):
        return str(value)
    return json.dumps(value, ensure_ascii=False).replace('\\"', "\\u0022")


def _signal_group(leader: int, number: signal.Signals) -> None:
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        return
