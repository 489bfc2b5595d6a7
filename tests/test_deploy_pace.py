"""Devices at their own pace, with real processes: a SuperLink with TLS and keys, and four nodes that keep their app.

One federation serves all tests. Devices 0 to 2 take 1.5 seconds for their work. Device 3 takes ten times as long; in
the first test it does so in turn with trainings at the pace of the others, so that both are measured within the same
minutes, whatever else the machine does.
"""

import itertools
import json
import os
import shlex
import shutil
import signal
import statistics
import time
from pathlib import Path

import pytest

from attack.federation import WarmTrial
from fedprox.deploy.new_project import write_project
from fedprox.runs.folder import is_running

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are found through /proc")

PACE, NODES = 1.5, 4
SLOW, AS_FAST, ROUNDS = NODES - 1, 5, 170  # a slow training in six, the others as fast as those of the rest
SETTINGS = {
    "systems.model": "clock",
    "systems.server": "buffered",
    "systems.concurrency": NODES,
    "systems.buffer": 2,
    "solver.epochs": 1,
    "measure.every": 100,
    "measure.dissimilarity": "false",
    "checkpoint.every": 3,
    "deploy.deadline": 60,
    "deploy.grace": 30,
}


class Federation:
    """A federation that is up, and the pace of its devices."""

    def __init__(self, folder):
        self.folder, self.app, self.pace = folder, folder / "app", folder / "pace.json"
        write_project(self.app, devices=NODES)
        shutil.copy(Path(__file__).parent / "attack" / "paced_app" / "client_app.py", self.app / "federation")
        self.set_paces(PACE)
        self.trial = WarmTrial(folder / "trial", NODES)
        self.trial.app = self.app
        self.trial.environment |= {"FEDPROX_PACE": str(self.pace), "PYTHONPATH": str(Path(__file__).parent)}

    def set_paces(self, *seconds):
        """Let device 3 take these times in turn."""
        fast = {str(device): [PACE] for device in range(SLOW)}
        self.pace.write_text(json.dumps({**fast, str(SLOW): seconds}))

    def given(self, **more):
        """Return the run config."""
        return {"set": shlex.join(f"{key}={value}" for key, value in {**SETTINGS, **more}.items())}

    def restart(self, number, tries=30):
        """Start a node again; the SuperLink refuses it as long as it believes that the killed one is there."""
        before = self.joined(number)
        for _ in range(tries):
            process = self.trial.start_node(number)
            wait_for(lambda process=process: self.joined(number) > before or process.poll() is not None)
            if self.joined(number) > before:
                return
            time.sleep(5)
        raise AssertionError(self.trial.log(f"node{number}")[-300:])

    def joined(self, number):
        """Return how often a node has joined the federation."""
        return self.trial.log(f"node{number}").count("SuperNode ID")

    def servers(self):
        """Return the processes of the server."""
        found = []
        for process in self.trial.left_over():
            try:
                if b"flwr-serverapp" in Path(f"/proc/{process}/cmdline").read_bytes():
                    found.append(process)
            except OSError:
                continue  # it has ended
        return found


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    made = Federation(tmp_path_factory.mktemp("pace"))
    with made.trial:
        yield made


def read_rows(out):
    """Return who took part in each version."""
    return [json.loads(line) for line in (out / "devices.jsonl").read_text().splitlines()]


def read_events(out):
    """Return what has happened to the devices so far."""
    log = out / "replies" / "events.jsonl"
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    return [json.loads(line) for line in lines]


def times_at_work(events, device):
    """Return when a device was asked and when it replied, for each of its replies."""
    asked = {event["asked"][0]: event["at"] for event in events if "asked" in event}
    return [(asked[event["order"]], event["at"]) for event in events if event.get("device") == device]


def updates_per_minute(replies, spans):
    """Return the updates per minute of devices within some spans of time, given when each of them replied.

    The time between two replies of a device is one update, of which a span has the share that lies within it.
    """
    seconds = updates = 0.0
    for times in replies:
        for begin, end in itertools.pairwise(times):
            shared = sum(max(0.0, min(end, until) - max(begin, since)) for since, until in spans)
            seconds, updates = seconds + shared, updates + shared / (end - begin)
    return 60 * updates / seconds


def test_an_update_belongs_to_the_time_that_it_took():
    replies = [[0.0, 2.0, 4.0, 8.0]] * 3
    assert updates_per_minute(replies, [(0.0, 3.0)]) == 60 * 1.5 / 3
    assert updates_per_minute(replies, [(3.0, 5.0), (5.0, 8.0)]) == 60 * (0.5 + 0.25 + 0.75) / 5


def test_a_device_ten_times_slower_does_not_hold_up_the_others_and_its_work_is_in_the_model(federation):
    federation.set_paces(10 * PACE, *[PACE] * AS_FAST)
    out = federation.folder / "slow"
    given = federation.given(rounds=ROUNDS, **{"systems.buffer": 1})
    federation.trial.run(federation.app, out, given, start_seconds=600)
    rows, events = read_rows(out), read_events(out)
    own = times_at_work(events, SLOW)
    replies = [[at for _, at in times_at_work(events, device)] for device in range(SLOW)]
    ratios = []
    for first in range(0, len(own) - AS_FAST, 1 + AS_FAST):
        slow, fast = own[first], own[first + 1 : first + 1 + AS_FAST]
        assert slow[1] - slow[0] >= 10 * PACE
        ratios.append(updates_per_minute(replies, [slow]) / updates_per_minute(replies, [(fast[0][0], fast[-1][1])]))
    assert len(ratios) >= 3
    # The machine's load differs from minute to minute. Twice the standard error of the mean is what that explains.
    error = statistics.stdev(ratios) / len(ratios) ** 0.5
    assert statistics.fmean(ratios) >= 0.9 - 2 * error, ratios
    assert statistics.fmean(ratios) >= 0.6, ratios  # a server that waits for the slowest has 0.2
    late = [row for row in rows if row["device"] == [SLOW] and row["staleness"][0] >= 3]
    assert len(late) >= len(ratios)
    assert all(row["kept"] == [True] for row in rows)


def test_no_reply_is_lost_that_the_server_had_taken_when_it_and_a_device_are_killed(federation):
    federation.set_paces(10 * PACE)
    out = federation.folder / "killed"
    given = federation.given(rounds=10)
    federation.trial.submit(federation.app, {**given, "out": str(out)})
    wait_for(lambda: is_running(out), seconds=120)
    wait_for(lambda: len(replies(out)) >= 6)
    federation.trial.end("node1", signal.SIGKILL)
    before = len(replies(out))
    wait_for(lambda: len(replies(out)) >= before + 3)  # the others go on
    for process in federation.servers():
        os.kill(process, signal.SIGKILL)
    wait_for(lambda: not federation.servers() and not is_running(out))
    taken = replies(out)
    federation.restart(1)
    federation.trial.run(federation.app, out, {**given, "resume": True}, start_seconds=600)
    assert json.loads((out / "summary.json").read_text())["rounds"] == 10
    rows = read_rows(out)
    merged = [(device, version) for row in rows
              for device, version, kept in zip(row["device"], row["version"], row["kept"], strict=True)
              if kept]  # fmt: skip
    assert len(taken) >= 9
    for device, version in taken:
        assert merged.count((device, version)) == 1
    assert 1 in {device for device, _ in merged[len(taken) :]}  # the killed device is back
    assert not any(row["problem"][place] for row in rows for place, kept in enumerate(row["kept"]) if kept)


def replies(out):
    """Return device and version of the replies that the server has taken so far."""
    events = read_events(out)
    asked = {event["asked"][0]: event["asked"] for event in events if "asked" in event}
    return [(event["device"], asked[event["order"]][1]) for event in events if event.get("problem", "") is None]


def wait_for(holds, seconds=600):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)
