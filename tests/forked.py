"""Processes of fedprox that need not import JAX: they are forked from one that has.

Importing takes two to three seconds of processor time, which is most of what a short command costs. After `install()`
`subprocess.Popen` starts `python -m fedprox...` by asking a template: a process that has imported the modules below and
has not started JAX's backend. It forks a watcher; the watcher forks the new process, which tells its id, and tells how
that one ended. Arguments, folder, environment, standard streams, session and signals are those that were asked for. The
processes that it starts in turn are forked alike.

What is started in another way (another program, `-c`, another environment for Python or JAX) is started as ever. Tests
that look at command lines in /proc, or at what happens before `main`, take the fixture `started_anew`.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import inspect
import json
import os
import re
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PLAIN: Any = subprocess.Popen
IMPORTED = (
    "fedprox.cli.app",
    "fedprox.experiments.compare",
    "fedprox.experiments.scheduler",
    "fedprox.report.plot",
    "fedprox.report.terminal",
    "fedprox.training.train",
)
_ADDRESS = "FEDPROX_TEST_TEMPLATE"  # of the template's socket
# variables that are read while Python, NumPy and JAX are imported, or before
_EARLY = re.compile(r"(PYTHON|JAX|XLA|TF|OMP|OPENBLAS|MKL|LD|LC|XDG|MPL|MALLOC|CUDA).*|HOME|LANG|TMPDIR|TZ")
_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_RARE = ("preexec_fn", "pass_fds", "shell", "gid", "gids", "uid")
_NUMBER = struct.Struct("=i")
_starting = threading.Lock()
_environment: dict[str, str] = {}
_template_ids: list[int] = []


def install() -> None:
    """Let `subprocess` of this process fork processes of fedprox."""
    names = set(inspect.signature(PLAIN._execute_child).parameters)
    if sys.platform == "linux" and {"args", "cwd", "env", *_PIPES} <= names:
        _environment.update(os.environ)  # before a test changes it
        subprocess.Popen = Popen


def start_template() -> None:
    """Start the template now, so that the processes started from here on share it."""
    if subprocess.Popen is Popen:
        _template()


class Popen(PLAIN):
    """A process, forked from the template where it can be."""

    _end: socket.socket | None = None

    def _execute_child(self, *given: Any, **named: Any) -> None:
        asked = inspect.signature(super()._execute_child).bind(*given, **named).arguments
        environment = dict(os.environ if asked["env"] is None else asked["env"])
        module = _module(asked)
        if module is None or not _is_like_ours(environment):
            super()._execute_child(*given, **named)
            return
        request = {
            "module": module,
            "arguments": [os.fspath(word) for word in asked["args"]],
            "folder": os.path.join(os.getcwd(), os.fspath(asked["cwd"] or "")),
            "environment": environment,
            "session": bool(asked.get("start_new_session")),
        }
        ends = [asked["p2cread"], asked["c2pwrite"], asked["errwrite"]]
        content = json.dumps(request).encode()
        self._end = socket.socket(socket.AF_UNIX)
        self._end.connect(_template())
        streams = [number if end == -1 else end for number, end in enumerate(ends)]
        socket.send_fds(self._end, [_NUMBER.pack(len(content))], streams)
        self._end.sendall(content)
        self.pid = _NUMBER.unpack(_receive(self._end, _NUMBER.size))[0]
        self._child_created = True
        self._close_pipe_fds(*(asked[name] for name in _PIPES))

    def _try_wait(self, flags: int) -> tuple[int, int]:
        """As `os.waitpid`: the watcher is told by the system, and tells us."""
        if self._end is None:
            return super()._try_wait(flags)
        if not select.select([self._end], [], [], 0 if flags & os.WNOHANG else None)[0]:
            return 0, 0
        with self._end:
            return self.pid, _NUMBER.unpack(_receive(self._end, _NUMBER.size))[0]

    def _internal_poll(self, _deadstate: int | None = None, **internals: Any) -> int | None:
        if self._end is None:
            return super()._internal_poll(_deadstate, **internals)
        if self.returncode is None and self._waitpid_lock.acquire(False):
            try:  # which keywords the original takes for `os.waitpid` depends on the version of Python
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid:
                        self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode


def _module(asked: Mapping[str, Any]) -> str | None:
    """Return the module of fedprox that is to be run by this Python, if it is one."""
    words = asked["args"]
    if isinstance(words, str | bytes | os.PathLike) or any(asked.get(name) for name in _RARE):
        return None
    python, *words = [os.fsdecode(word) for word in words]
    words = words[1:] if words[:1] == ["-P"] else words
    is_ours = python == sys.executable and asked["executable"] in (None, python)
    return words[1] if is_ours and words[:1] == ["-m"] and re.match(r"fedprox(\.|$)", words[1]) else None


def _is_like_ours(environment: dict[str, str]) -> bool:
    ours = _environment or os.environ
    names = {name for name in {*environment, *ours} if environment.get(name) != ours.get(name)}
    return not any(_EARLY.fullmatch(name) for name in names)


def _template() -> str:
    """Return the address of the template, which ends with the process that has started it."""
    with _starting:
        if _ADDRESS not in os.environ:
            folder = tempfile.TemporaryDirectory(prefix="fedprox-template-")
            atexit.register(folder.cleanup)
            address = str(Path(folder.name) / "socket")
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(address)
                listener.listen(16)
                number = listener.fileno()
                command = [sys.executable, "-P", __file__, str(number)]
                process = PLAIN(
                    command, env=_environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=[number]
                )
            atexit.register(process.wait)
            atexit.register(process.stdin.close)
            _template_ids.append(process.pid)
            os.environ[_ADDRESS] = address
        return os.environ[_ADDRESS]


def processor_seconds() -> float:
    """Return the processor time of the template and of the processes forked from it that have ended."""
    if not _template_ids:
        return 0.0
    fields = Path(f"/proc/{_template_ids[0]}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _receive(connection: socket.socket, count: int) -> bytes:
    content = b""
    while len(content) < count:
        piece = connection.recv(count - len(content))
        if not piece:
            raise ConnectionError("the template has ended")
        content += piece
    return content


def serve(listener: socket.socket) -> str:
    """Fork a process for each request, until standard input ends; return only in a new process: what it has to run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection, also the one at the end of a process, would touch and thus copy all that was imported
    signal.signal(signal.SIGCHLD, _reap)
    while True:
        if sys.stdin in select.select([listener, sys.stdin], [], [])[0]:
            os._exit(0)
        connection = listener.accept()[0]
        if _fork() == 0:
            return _watch(connection, listener)
        connection.close()


def _reap(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of NumPy's library are prepared for a fork
        return os.fork()


def _watch(connection: socket.socket, listener: socket.socket) -> str:
    """Start the process that is asked for, and tell how it ends; return what the new process has to run."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, streams, _, _ = socket.recv_fds(connection, _NUMBER.size, 3)
    request = json.loads(_receive(connection, *_NUMBER.unpack(head)))
    process = _fork()
    if process == 0:
        _become(request, streams)
        connection.sendall(_NUMBER.pack(os.getpid()))
        for shared in (connection, listener):
            shared.close()
        return request["module"]
    for stream in streams:
        os.close(stream)
    with contextlib.suppress(BrokenPipeError):  # the process that asked may be gone
        connection.sendall(_NUMBER.pack(os.waitpid(process, 0)[1]))
    os._exit(0)


def _become(request: dict[str, Any], streams: list[int]) -> None:
    """Make this process the one that was asked for."""
    if request["session"]:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    arguments = request["arguments"]
    if "-P" not in arguments[:2]:
        sys.path.insert(0, request["folder"])
    sys.argv = ["-m", *arguments[arguments.index("-m") + 2 :]]
    _environment.update(os.environ)
    install()


if __name__ == "__main__":
    runpy.run_module(serve(socket.socket(fileno=int(sys.argv[1]))), run_name="__main__", alter_sys=True)
