"""What has happened to the devices of a federation, kept on disk before it counts.

    replies/events.jsonl           one event per line: a device was asked, has replied, or gives no reply, and when
    replies/ORDER.safetensors      the reply, under the number of its assignment

A reply is written and flushed before its line, and its line before the server continues. So a server that is ended at
any moment finds every reply that it had taken, and repeats the merges since its checkpoint with the same replies in the
same order. A line that was not written to its end is left out: its event has not been acted upon.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedprox.core.errors import RunFolderError
from fedprox.core.files import json_line, read_tensors, write_tensors
from fedprox.deploy.message_records import Named

__all__ = ["ReplyLog"]


class ReplyLog:
    """The events of a run, in their order.

    Args:
      folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "replies"
        self._folder.mkdir(exist_ok=True)
        self._file = self._folder / "events.jsonl"
        self._events = self._read()
        self._forgotten = 0

    def __len__(self) -> int:
        return len(self._events)

    def __getitem__(self, position: int) -> dict[str, Any]:
        return self._events[position]

    def add(
        self, event: Mapping[str, Any], arrays: Named | None = None, values: Mapping[str, Any] | None = None
    ) -> None:
        """Write an event; with arrays and values where it is a reply, which has an `order`."""
        if arrays is not None:
            write_tensors(self._reply(event["order"]), arrays, values)
        event = {**event, "at": round(time.time(), 3)}
        with self._file.open("ab") as file:
            file.write(json_line(event).encode())
            file.flush()
            os.fsync(file.fileno())
        self._events.append(event)

    def reply(self, order: int) -> tuple[Named, dict[str, Any]]:
        """Return the arrays and values of a reply."""
        arrays, values = read_tensors(self._reply(order))
        return arrays, values or {}

    def forget(self, position: int) -> None:
        """Delete the replies of the events before a position, which no checkpoint needs any more."""
        for event in self._events[self._forgotten : position]:
            if "order" in event:
                self._reply(event["order"]).unlink(missing_ok=True)
        self._forgotten = max(self._forgotten, position)

    def _reply(self, order: int) -> Path:
        return self._folder / f"{order}.safetensors"

    def _read(self) -> list[dict[str, Any]]:
        """Return the events, and cut off a line that was not written to its end."""
        if not self._file.exists():
            return []
        content = self._file.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            with self._file.open("r+b") as file:
                file.truncate(len(whole))
        try:
            return [json.loads(line) for line in whole.splitlines()]
        except ValueError as error:
            raise RunFolderError(f"{self._file} must have a JSON object on each line: {error}") from None
