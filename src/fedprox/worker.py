"""A process that runs jobs for the scheduler: one JSON line in, JSON lines of progress out.

in:   {"config": {...}, "out": "runs/x"}
out:  {"round": 1, "metrics": {...} or null} ... and last {"summary": {...}} or {"error": "a sentence"}
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from typing import IO, Any

from fedprox.config import Config
from fedprox.errors import FedProxError
from fedprox.files import json_line
from fedprox.result import Progress
from fedprox.signals import StopOnSignal
from fedprox.training import train

__all__ = ["main"]


def main() -> None:
    """Serve jobs until standard input ends."""
    channel = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever else prints must not end up between the answers
    with StopOnSignal(signal.SIGTERM) as stop:
        for text in sys.stdin:
            _say(channel, _run(json.loads(text), channel, stop))
            if stop.signal is not None:
                return


def _run(job: dict[str, Any], channel: IO[str], stop: StopOnSignal) -> dict[str, Any]:
    def report(progress: Progress) -> None:
        _say(channel, {"round": progress.round, "metrics": progress.metrics})

    try:
        result = train(Config.from_dict(job["config"]), out=job["out"], callbacks=[report, stop])
    except FedProxError as error:
        return {"error": str(error)}
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}
    return {"summary": result.summary}


def _say(channel: IO[str], message: dict[str, Any]) -> None:
    channel.write(json_line(message))
    channel.flush()


if __name__ == "__main__":
    main()
