"""A process that runs jobs for the scheduler: one JSON line in, JSON lines of progress out.

in:   {"config": {...}, "out": "runs/x", "resume": false, "folders": [...]}, where to look for modules that it names
out:  {"round": 1, "metrics": {...} or null} ... and last {"summary": {...}} or {"error": "a sentence", "kind": "..."},
      with the name of the error's class

The scheduler ends the input only when no job is running. If it ends during a job, the scheduler is gone, and the
process exits immediately, as if killed: a run folder survives that at any moment.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from fedprox.config import Config
from fedprox.config.part_search import add_folders
from fedprox.core.cache import CacheWarning
from fedprox.core.errors import FedProxError
from fedprox.core.files import json_line
from fedprox.core.priority import pass_priority_to_session
from fedprox.core.signals import StopOnSignal
from fedprox.training.result import Callback, Progress
from fedprox.training.train import train

__all__ = ["main", "run_job"]


def main() -> None:
    """Serve jobs until standard input ends."""
    channel = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # other output must not be mixed with the answers
    warnings.simplefilter("ignore", CacheWarning)  # the scheduler has already reported it
    pass_priority_to_session()
    requests = _Requests()
    with StopOnSignal(signal.SIGTERM) as stop:
        for job in requests:
            answer = _run(job, channel, stop)
            requests.busy.clear()
            _say(channel, answer)
            if stop.signal is not None:
                return


class _Requests:
    """Lines of standard input, read by a thread so that its end is noticed even while a job runs."""

    def __init__(self) -> None:
        self.busy = threading.Event()
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while (text := self._lines.get()) is not None:
            yield json.loads(text)

    def _read(self) -> None:
        for text in sys.stdin:
            self.busy.set()
            self._lines.put(text)
        if self.busy.is_set():
            os._exit(1)
        self._lines.put(None)


def _run(job: dict[str, Any], channel: IO[str], stop: StopOnSignal) -> dict[str, Any]:
    def report(progress: Progress) -> None:
        _say(channel, {"round": progress.round, "metrics": progress.metrics})

    add_folders(job.get("folders", []))
    try:
        config = Config.from_dict(job["config"])
    except FedProxError as error:
        return {"error": str(error), "kind": type(error).__name__}
    return run_job(config, job["out"], job.get("resume", False), [report, stop], {})


def run_job(
    config: Config, out: str | Path, resume: bool, callbacks: Sequence[Callback], objects: Mapping[str, Any]
) -> dict[str, Any]:
    """Run one job and return its last message: its summary, or its error."""
    own = objects.get("callbacks", ())
    others = {name: given for name, given in objects.items() if name != "callbacks"}
    try:
        result = train(config, out=out, resume=resume, callbacks=[*own, *callbacks], **others)
    except FedProxError as error:
        return {"error": str(error), "kind": type(error).__name__}
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}", "kind": type(error).__name__}
    return {"summary": result.summary}


def _say(channel: IO[str], message: dict[str, Any]) -> None:
    channel.write(json_line(message))
    channel.flush()


if __name__ == "__main__":
    main()
