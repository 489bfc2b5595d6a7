"""The folder of a trial: its keys do not outlive it, even if it is killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedprox.core.errors import RunError
from fedprox.deploy.trial import Trial, _free_port
from fedprox.deploy.trial_folder import remove_left_keys, trial_folder

HOLD = """
import sys, time
from fedprox.deploy.trial_folder import trial_folder
with trial_folder() as folder:
    (folder / "keys").mkdir()
    (folder / "keys" / "server.key").write_text("secret")
    print(folder, flush=True)
    time.sleep(1000)
"""


@pytest.fixture
def holder(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True, env=environment)
    yield process, Path(process.stdout.readline().strip())
    process.kill()
    process.wait()
    process.stdout.close()


def test_the_next_trial_removes_the_keys_of_a_killed_one_and_leaves_those_of_a_live_one(holder, tmp_path):
    process, folder = holder
    (folder / "superlink.log").write_text("words")
    remove_left_keys(tmp_path)
    assert (folder / "keys" / "server.key").exists()
    process.send_signal(signal.SIGKILL)
    process.wait()
    remove_left_keys(tmp_path)
    assert not (folder / "keys").exists()
    assert (folder / "superlink.log").exists()


def test_a_link_in_the_temporary_folder_is_not_followed(tmp_path):
    home = tmp_path / "home"
    (home / "keys").mkdir(parents=True)
    (home / "lock").touch()
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "fedprox-trial-x").symlink_to(home)
    remove_left_keys(tmp_path / "shared")
    assert (home / "keys").exists()


def test_the_folder_stays_where_the_trial_fails(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with trial_folder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()
    with pytest.raises(RuntimeError), trial_folder() as folder:
        raise RuntimeError
    assert folder.exists()


class Started:
    """A SuperLink that listens nowhere."""

    def __init__(self, ended):
        self.ended = ended

    def poll(self):
        return self.ended


@pytest.mark.parametrize(
    ("ended", "sentence"),
    [(None, r"must be reachable within 0\.01 seconds; it is not"), (1, r"did not start; the last lines")],
)
def test_a_slow_server_is_told_from_one_that_ended(ended, sentence, tmp_path, monkeypatch):
    monkeypatch.setattr("fedprox.deploy.trial.shutil.which", lambda *_, **__: "flower-superlink")
    trial = Trial(tmp_path, 1)
    (tmp_path / "superlink.log").touch()
    trial.port = _free_port()
    trial._processes["superlink"] = Started(ended)
    with pytest.raises(RunError, match=sentence + r".*: nothing$"):
        trial._wait_for_port(0.01)
