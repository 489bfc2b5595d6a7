"""The outcome of a round's messages: work that may be merged, and why there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox.deploy.message_exchange import NodeAnswer
from fedprox.deploy.message_records import Named, attempt
from fedprox.deploy.messages import WorkReport
from fedprox.deploy.reply_checks import Expected, reason_to_refuse
from fedprox.engines import Task

__all__ = ["Collected"]


@dataclass(frozen=True)
class Collected:
    """The answers of a round, by device."""

    work: dict[int, WorkReport] = field(default_factory=dict)  # the replies that may be merged
    problems: dict[int, str] = field(default_factory=dict)  # why there is none, or why it was refused
    refused: dict[int, str] = field(default_factory=dict)  # of these, the replies that are bad
    seconds: dict[int, float] = field(default_factory=dict)  # from sending to receiving
    bytes: dict[int, int] = field(default_factory=dict)  # of the arrays, down and up

    def record(self, devices: list[int | None]) -> dict[str, Any]:
        """Return it as fields of `devices.jsonl`, in the order of the round's list; None is a device not asked."""
        work = [None if device is None else self.work.get(device) for device in devices]
        return {
            "failed": [device in self.problems for device in devices],
            "problem": [None if device is None else self.problems.get(device) for device in devices],
            "seconds": [one and one.seconds for one in work],
            "waited": [None if device is None else self.seconds.get(device) for device in devices],
            "speed": [one and one.speed for one in work],
            "loss": [one and one.loss for one in work],
            **({"lost_personal": lost} if any(lost := [bool(one and one.lost_personal) for one in work]) else {}),
        }

    def replied(self, tasks: Sequence[Task | None]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return whose replies can be used, and whose work the deadline has ended, in the order of the round's list."""
        work = [None if task is None else self.work.get(task.device) for task in tasks]
        cut_off = [
            one is not None and task is not None and one.stopped_by_time and one.steps < task.budget
            for one, task in zip(work, tasks, strict=True)
        ]
        return np.array([one is not None for one in work], bool), np.array(cut_off, bool)

    def refuse(self, device: int, reason: str) -> None:
        """Leave out the reply of a device."""
        self.work.pop(device, None)
        self.refused[device] = reason
        self.problems[device] = f"refused: {reason}"

    def sort(
        self, answers: Mapping[int, NodeAnswer], expected: Mapping[int, Expected], anchor: Named
    ) -> dict[int, WorkReport]:
        """Take the answers of devices that were sent `anchor`; return work that is good."""
        good: dict[int, WorkReport] = {}
        for device, answer in answers.items():
            self.seconds[device] = self.seconds.get(device, 0.0) + answer.seconds
            if answer.records is None:
                self.problems[device] = str(answer.problem)
                continue
            records = answer.records
            work, reason = attempt(lambda records=records: WorkReport.from_records(records, anchor))  # type: ignore[misc]
            if work is not None:
                reason = reason_to_refuse(work, anchor, expected[device], answer.seconds)
            if work is None or reason is not None:
                self.refuse(device, str(reason))
            elif work.steps == 0 and work.stopped_by_time:
                self.problems[device] = "the time was up before its first step"
            else:
                good[device] = work
        return good
