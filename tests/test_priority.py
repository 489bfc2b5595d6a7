"""Work in the background has the lowest priority, also where the system divides the processor between sessions."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedprox.core import priority

SESSION = Path("/proc/self/autogroup")
PROGRAM = """
import os, pathlib
from fedprox.core.priority import lower_priority, pass_priority_to_session
lower_priority()
pass_priority_to_session()
print(os.nice(0), pathlib.Path("/proc/self/autogroup").read_text().split()[-1])
"""


@pytest.mark.skipif(not SESSION.exists(), reason="the system has no priorities of sessions")
def test_a_session_takes_the_priority_of_its_process():
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, start_new_session=True, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["19", "19"]


def test_a_session_of_a_process_of_usual_priority_is_left_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(priority, "_SESSION", tmp_path / "autogroup")
    (tmp_path / "autogroup").write_text("as it was")
    monkeypatch.setattr(os, "nice", lambda change: 0)
    priority.pass_priority_to_session()
    assert (tmp_path / "autogroup").read_text() == "as it was"
    monkeypatch.setattr(os, "nice", lambda change: 5)
    priority.pass_priority_to_session()
    assert (tmp_path / "autogroup").read_text() == "5"


def test_without_priorities_nothing_happens(monkeypatch, tmp_path):
    monkeypatch.setattr(priority, "_SESSION", tmp_path / "missing")
    monkeypatch.setattr(os, "nice", lambda change: 5)
    priority.pass_priority_to_session()
    assert not (tmp_path / "missing").exists()
    monkeypatch.delattr(os, "nice")
    priority.lower_priority()
    priority.pass_priority_to_session()
