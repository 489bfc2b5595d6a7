"""The cluster: joined if an address is given, otherwise started on this machine for the run and stopped after it.

A cluster that is started here listens on the loopback address only, requires a token from a private folder of every
client, and has neither dashboard nor usage statistics. Its processes end with this one, however it ends: on Linux the
system kills them, elsewhere a process of Ray watches over them. After a `kill -9` of this one, two small helper
processes of Ray need a minute to exit.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from fedprox.core.errors import ConfigError, RunError
from fedprox.core.extras import needs_extra
from fedprox.core.locks import open_own, try_lock
from fedprox.core.machine import usable_cores
from fedprox.core.signals import exits_on_termination
from fedprox.engines.ray.exit_message import LastWords

__all__ = ["Cluster"]

_SHORT = 18  # the longest folder in which the paths of Ray's sockets fit into the 107 bytes that the system allows
_GRACE = 10.0  # seconds that a head may not answer; Ray ends this process after 60
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_LOG_TO_DRIVER_EVENT_LEVEL": "FATAL",
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # of a failed call, the first answer is enough
}
_KEEP_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # else Ray replaces 127.0.0.1 by the machine's address


class Cluster:
    """A Ray cluster that this process is part of, until `close`.

    Args:
      address: host:port of its head, "auto" for the one on this machine, or "" for `RAY_ADDRESS` or a new one.
      workers: how many actors it must have room for; 0 asks for as many as it has CPUs.
    """

    def __init__(self, address: str, workers: int) -> None:
        self._folder: Path | None = None
        self._lock: IO[bytes] | None = None
        self._before: dict[str, str | None] = {}
        self._joined = self.is_lost = False
        self._last_words: LastWords | None = None
        try:
            self._open(address, workers)
            self.workers = self._room(workers)
            self._head: str = self.ray.get_runtime_context().gcs_address
        except BaseException:
            self.close()
            raise

    def _open(self, address: str, workers: int) -> None:
        if sys.modules.get("ray") is not None and _import_ray().is_initialized():
            self.ray = _import_ray()  # started by other code in this process, which will also stop it
            _check_same(address, self.ray.get_runtime_context().gcs_address)
            return
        address = address or os.environ.get("RAY_ADDRESS", "")
        if address in ("", "local"):
            self._set(_QUIET | _KEEP_LOOPBACK | {"RAY_AUTH_MODE": "token"})
            self.ray = _import_ray()
            self._start(workers)
        else:
            host = _checked(address)
            self._set(_QUIET | (_KEEP_LOOPBACK if host in _LOOPBACK else {}))
            self.ray = _import_ray()
            self._init(f"no Ray cluster could be joined at {address}", address=address)

    def _start(self, workers: int) -> None:
        cores = usable_cores()
        if workers > cores:
            raise ConfigError(f"`engine.workers` must be at most {cores}, the cores of this machine; got {workers}")
        self._folder, self._lock = _private_folder()
        token = self._folder / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        self._set({"RAY_AUTH_TOKEN_PATH": str(token), "RAY_AUTH_TOKEN": None})
        self._init(
            "no Ray cluster could be started on this machine",
            address="local",
            num_cpus=workers or cores,
            include_dashboard=False,
            _node_ip_address="127.0.0.1",
            _temp_dir=str(self._folder / "ray"),  # Ray opens it to all users; the folder around it stays closed
        )
        addresses = {node["NodeManagerAddress"] for node in self.ray.nodes()}
        if addresses != {"127.0.0.1"}:
            raise RunError(f"a Ray cluster started here must listen on 127.0.0.1 only; it is at {', '.join(addresses)}")

    def _init(self, failure: str, **arguments: Any) -> None:
        with (
            _own_signals(),
            exits_on_termination(),
            _without_rays_signals(),
            _in_a_folder_of_our_own(self._folder),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            _read_environment_again()
            self._joined = True  # a half-started cluster is stopped too
            try:
                self.ray.init(logging_level="ERROR", log_to_driver=False, **arguments)
            except Exception as error:  # whatever Ray raises, down to OSError, is the answer
                raise RunError(f"{failure}: {_first_line(error)}") from None
        self._last_words = LastWords(
            "fedprox: the process had to end at once: it was killed, or Ray ended it because the node of the cluster "
            "that it was connected to is lost (a run folder continues from its checkpoint with --resume)"
        )

    def _room(self, workers: int) -> int:
        room = int(self.ray.cluster_resources().get("CPU", 0))
        if room < max(workers, 1):
            need = f"at most {room}, the CPUs of the Ray cluster" if room else "0 on a Ray cluster that has a CPU"
            raise ConfigError(f"`engine.workers` must be {need}; an actor needs one CPU; got {workers}")
        return workers or room

    def look_after(self) -> None:
        """Check that the head answers, or raise; no function of Ray that contacts it may be called while it does not.

        Ray itself would wait for a minute, and then end this process.
        """
        deadline = time.monotonic() + _GRACE
        while not _answers(self._head):
            if time.monotonic() > deadline:
                self.is_lost = True
                raise RunError(
                    f"the head of the Ray cluster at {self._head} has not answered for {_GRACE:.0f} s, so the cluster "
                    "is lost (a run folder continues from its checkpoint with --resume)"
                )
            time.sleep(0.5)

    def close(self) -> None:
        """Leave the cluster; stop it if it was started here."""
        try:
            if self._joined:
                with _own_signals():
                    self.ray.shutdown()
        finally:
            self._joined = False
            if self._last_words is not None:
                self._last_words.close()
            self._last_words = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if self._before and sys.modules.get("ray") is not None:
            _read_environment_again()
        self._before = {}

    def _set(self, variables: Mapping[str, str | None]) -> None:
        for name, value in variables.items():
            self._before.setdefault(name, os.environ.get(name))
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _import_ray() -> Any:
    with needs_extra("ray", "`engine.name` = 'ray'"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray
    return ray


def _private_folder() -> tuple[Path, IO[bytes]]:
    """Make a private folder, with a lock that ends with this process; remove those of dead processes."""
    base = Path(tempfile.gettempdir())
    if len(str(base)) > _SHORT:
        base = Path("/tmp")  # noqa: S108 - the folder made in it is private
    for left in base.glob("fedprox-ray-*/lock"):
        with contextlib.suppress(OSError), open_own(left) as file:
            if try_lock(file):
                shutil.rmtree(left.parent, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix="fedprox-ray-", dir=base))
    lock = (folder / "unlocked").open("wb")
    try_lock(lock)  # no other process knows the file yet
    (folder / "unlocked").rename(folder / "lock")
    return folder, lock


def _read_environment_again() -> None:
    """Update the values that Ray reads from the environment at import, which may have been long ago."""
    core: Any = importlib.import_module("ray._raylet")
    constants: Any = importlib.import_module("ray._private.ray_constants")
    core.Config.initialize("")
    core.AuthenticationTokenLoader.instance().reset_cache()
    default = not sys.platform.startswith(("win", "darwin"))
    constants.ENABLE_RAY_CLUSTER = constants.env_bool(constants.ENABLE_RAY_CLUSTERS_ENV_VAR, default)


def _checked(address: str) -> str:
    """Refuse an address where nothing listens, which Ray would try for minutes; return its host."""
    if "RAY_AUTH_MODE" not in os.environ:
        raise ConfigError(
            "`RAY_AUTH_MODE` must be set to join a Ray cluster: 'token', as on all its nodes, or 'disabled' if "
            f"anyone who can reach it may run code there; got nothing, for {address}"
        )
    if address == "auto":
        return address
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdigit() or "/" in host:
        raise ConfigError(
            f"`engine.address` must be host:port of the head of a Ray cluster, or 'auto'; got {address!r}"
        )
    if not _answers(address):
        raise RunError(f"no Ray cluster could be joined at {address}: nothing answers there")
    return host


def _check_same(address: str, connected: str) -> None:
    """Refuse the address of another cluster than the one that this process is connected to: it can be in only one."""
    host, _, port = address.rpartition(":")
    there, _, at = connected.rpartition(":")
    if address in ("", "auto", "local") or (port == at and _numbers(host) & _numbers(there)):
        return
    raise ConfigError(
        f"`engine.address` must be empty or {connected}, the Ray cluster that this process is connected to already; "
        f"got {address!r}"
    )


def _numbers(host: str) -> set[str]:
    """Return the addresses of a host name."""
    if host in _LOOPBACK:
        return {"127.0.0.1"}
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host.strip("[]"), None)}
    except OSError:
        return {host}


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _in_a_folder_of_our_own(folder: Path | None) -> Iterator[None]:
    """Start Ray elsewhere: its workers search the folder where it was started for every module, before all others."""
    with contextlib.ExitStack() as until_it_is_started:
        place = folder or until_it_is_started.enter_context(tempfile.TemporaryDirectory())
        until_it_is_started.enter_context(contextlib.chdir(place))
        yield


@contextlib.contextmanager
def _without_rays_signals() -> Iterator[None]:
    """Keep Ray from answering a SIGTERM itself while it starts: with another exit code, and nothing cleaned up."""
    utilities: Any = importlib.import_module("ray._private.utils")
    before = utilities.set_sigterm_handler
    utilities.set_sigterm_handler = lambda handler: None
    try:
        yield
    finally:
        utilities.set_sigterm_handler = before


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keep the handlers of this process: Ray puts its own for SIGTERM in their place."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
