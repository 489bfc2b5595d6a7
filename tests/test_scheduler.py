import os
import signal
import subprocess
import threading
import time

import pytest

from fedprox.config import Config
from fedprox.core.errors import ConfigError, DataError, RunError, RunFolderError
from fedprox.experiments.compare import Comparison, collect, plan, variant
from fedprox.experiments.scheduler import Ended, Job, run_jobs
from fedprox.runs.history import History

QUICK = {"rounds": 2, "solver": {"epochs": 1}, "data": {"devices": 12}}


def build_jobs(tmp_path, *settings):
    return [Job(str(i), Config.from_dict({**QUICK, **extra}), tmp_path / str(i)) for i, extra in enumerate(settings)]


def workers_running():
    """The ids of the worker processes that this process has started and that still run."""
    command = ["pgrep", "-P", str(os.getpid()), "-f", "fedprox.experiments.run_process"]
    return [int(line) for line in subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()]


def test_results_come_in_the_order_of_the_jobs_and_a_failure_costs_one_job_alone(tmp_path):
    jobs = build_jobs(tmp_path, {}, {"devices": {"per_round": 99}}, {"seed": 1})
    events = []
    ended = run_jobs(jobs, workers=2, on_event=events.append)
    assert [end.job.name for end in ended] == ["0", "1", "2"]
    assert ended[0].summary["rounds"] == ended[2].summary["rounds"] == 2
    assert "`devices.per_round` must be" in ended[1].error
    assert {(event.job.name, event.round) for event in events} == {(name, t) for name in "02" for t in range(3)}
    with pytest.raises(ConfigError, match=r"1 of 3 runs failed; .*: `devices.per_round` must be"):
        collect(ended)


def test_only_input_that_is_to_blame_for_every_failure_is_called_bad_input(tmp_path):
    good, one, other = build_jobs(tmp_path, {}, {}, {})
    bad = [Ended(job, error="x must be numbers; got str", kind="DataError") for job in (one, other)]
    with pytest.raises(DataError, match=r"^x must be numbers; got str$"):
        collect(bad)
    with pytest.raises(DataError, match=r"^2 of 3 runs failed"):
        collect([Ended(good, {}), *bad])
    with pytest.raises(RunError, match=r"^2 of 2 runs failed"):
        collect([bad[0], Ended(other, error="OSError: gone", kind="OSError")])
    with pytest.raises(RunError, match=r"^1 of 1 runs failed"):
        collect([Ended(one, error="its process ended unexpectedly (exit code -9)")])


@pytest.mark.usefixtures("started_anew")
def test_a_process_that_is_killed_costs_its_job_alone(tmp_path):
    jobs = build_jobs(tmp_path, {"rounds": 100000}, {})

    def kill_the_long_one(event):
        if event.job.name == "0" and event.round == 3:
            found = subprocess.run(
                ["pgrep", "-P", str(os.getpid()), "-f", "fedprox.experiments.run_process"],
                capture_output=True,
                text=True,
                check=True,
            )
            os.kill(int(found.stdout.split()[0]), signal.SIGKILL)

    ended = run_jobs(jobs, workers=1, on_event=kill_the_long_one)
    assert "ended unexpectedly (exit code -9)" in ended[0].error
    assert ended[1].summary["ended"] == "finished"


@pytest.mark.usefixtures("started_anew")
def test_an_interrupt_stops_the_jobs_and_leaves_no_process_behind(tmp_path):
    def interrupt(event):
        if event.round == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_jobs(build_jobs(tmp_path, {"rounds": 100000}), workers=1, on_event=interrupt)
    assert workers_running() == []
    assert '"stopped"' in (tmp_path / "0" / "summary.json").read_text()


@pytest.fixture
def seen(monkeypatch):
    """Run no job, but note the workers that each is told to have, and how many jobs there are at a time."""
    workers, at_a_time, lock = {}, [], threading.Lock()
    running = set()

    def run(line, process, job):
        with lock:
            running.add(job.name)
            at_a_time.append(len(running))
            workers[job.name] = job.config.engine.workers
        time.sleep(0.1)
        with lock:
            running.discard(job.name)
        return Ended(job, summary={})

    monkeypatch.setattr("fedprox.experiments.scheduler._run", run)
    monkeypatch.setattr("fedprox.experiments.scheduler._start", lambda line, running: subprocess.Popen(["true"]))
    monkeypatch.setattr("fedprox.experiments.scheduler._end", lambda process: process.wait())
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    return workers, at_a_time


def test_runs_on_ray_keep_their_actors_and_go_one_after_another(tmp_path, seen):
    workers, at_a_time = seen
    on_ray = [{"engine": {"name": "ray", "workers": count}} for count in (0, 300, 7)]
    run_jobs(build_jobs(tmp_path, *on_ray, {}))
    assert workers == {"0": 0, "1": 300, "2": 7, "3": 8}
    assert max(at_a_time) == 1


def test_runs_on_ray_go_side_by_side_if_that_is_asked_for(tmp_path, seen):
    workers, at_a_time = seen
    run_jobs(build_jobs(tmp_path, *[{"engine": {"name": "ray", "workers": 20}}] * 4), workers=2)
    assert set(workers.values()) == {20}
    assert max(at_a_time) == 2


def test_local_runs_share_the_cores(tmp_path, seen):
    workers, at_a_time = seen
    run_jobs(build_jobs(tmp_path, {}, {}))
    assert set(workers.values()) == {4}
    assert max(at_a_time) == 2


def test_variants():
    assert variant("fedavg").overrides == ("method.name=fedavg",)
    assert variant("fedprox:mu=1").label == "fedprox (mu=1)"
    with pytest.raises(ConfigError, match="name:key=value"):
        variant("fedprox:mu")


def test_a_plan_checks_every_config_before_anything_runs(tmp_path):
    settings = {"seed": 4, "method": {"name": "fedprox", "mu": 0.7}}
    jobs = plan(settings, [variant("fedavg"), variant("fedprox:mu=1")], 2, tmp_path / "new")
    assert [(job.config.method.name, job.config.seed) for job in jobs] == [
        ("fedavg", 4),
        ("fedavg", 5),
        ("fedprox", 4),
        ("fedprox", 5),
    ]
    assert jobs[2].config.method.mu == 1.0
    with pytest.raises(ConfigError, match=r"`method.name` must be"):
        plan(settings, [variant("fedavg"), variant("nothing")], 1, tmp_path / "new")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(RunFolderError, match="is not empty"):
        plan(settings, [variant("fedavg")], 1, tmp_path / "full")


def comparison_of(**finals):
    histories, summaries = {}, {}
    for name, values in finals.items():
        histories[name] = [
            History([{"round": 0, "train_loss": loss, "train_accuracy": acc, "test_accuracy": acc}])
            for loss, acc in values
        ]
        summaries[name] = [{"diverged_round": 7 if loss is None else None, "seconds": 1.0} for loss, _ in values]
    return Comparison(histories, summaries)


def test_the_table_means_over_seeds_and_does_not_flatter():
    rows = comparison_of(a=[(1.0, 0.5), (3.0, 0.7)], b=[(None, None), (1.0, 0.9)]).table()
    assert rows[0]["train_loss"] == 2.0
    assert rows[0]["test_accuracy"] == pytest.approx(0.6)
    assert rows[0]["test_accuracy_deviation"] == pytest.approx(0.1414, abs=1e-4)
    assert rows[1]["train_loss"] is None  # one seed diverged: no mean over the survivors
    assert (rows[1]["diverged"], rows[1]["first_diverged_round"]) == (1, 7)


def test_the_verdict_in_words():
    words = comparison_of(a=[(1.0, 0.5)], b=[(0.5, 0.75)]).verdict()
    assert words == "b ends with the highest test accuracy, 75.0%: 25.0 points ahead of a."
    assert comparison_of(a=[(1.0, None)], b=[(0.5, None)]).verdict() == "b ends with the lowest training loss, 0.5000."
    assert comparison_of(a=[(None, None)]).verdict() == "No method ended with a finite loss."
