"""The Ray engine: the same bits as the local one, whoever is lost on the way, and nothing left behind.

How work is divided, repeated and repaired is tried on a stand-in for Ray in this process, with every method; then come
real clusters, real processes and real signals.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import fedprox
from conftest import population_of
from fedprox.config.parts import builtin_names
from fedprox.core.errors import ConfigError, DataError, OwnCodeError, RunError
from fedprox.engines.build import Blueprint
from fedprox.engines.device_side import Task
from fedprox.engines.ray import exit_message
from fedprox.engines.ray.actor import DeviceActor
from fedprox.engines.ray.actor_pool import Call, Pool
from fedprox.engines.ray.chunks import chunk_level, chunks
from fedprox.engines.ray.cluster import Cluster
from fedprox.engines.ray.device_states import Origin, RemoteState, States
from fedprox.population.folder import open_population
from fedprox.population.writer import save_population
from fedprox.solvers import opaque
from in_process_ray import InProcessRay, ObjectLostError, Reference, cluster_of

pytestmark = pytest.mark.filterwarnings("ignore:the theory of scaffnew needs every device in every round")
METHODS = builtin_names("methods")
BASE = {"rounds": 4, "solver": {"epochs": 2}, "devices": {"per_round": 11, "stragglers": 0.5, "failure": 0.1}}
SIZES = [7, 23, 4, 31, 12, 9, 40, 3, 18, 22, 5, 14, 27, 8]


def without_times(rows):
    return [{name: value for name, value in row.items() if not name.endswith("seconds")} for row in rows]


def assert_same(one, other):
    assert without_times(one.history) == without_times(other.history)
    assert without_times(one.devices) == without_times(other.devices)
    for left, right in zip(jax.tree.leaves(one.params), jax.tree.leaves(other.params), strict=True):
        assert np.array_equal(left, right)


@pytest.fixture
def on_ray(monkeypatch):
    """Train on the stand-in with a number of actors; return the result and the stand-in."""

    def train(config, workers=3, deaths=(), slow=(), **objects):
        cluster = cluster_of(workers, deaths, slow=slow)
        monkeypatch.setattr("fedprox.engines.ray.Cluster", lambda address, workers: cluster)
        return fedprox.train({**config, "engine": {"name": "ray"}}, **objects), cluster.ray

    return train


@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_the_same_way(on_ray, method):
    population = population_of(SIZES)
    config = {**BASE, "method": {"name": method}, "measure": {"gamma": True}}
    here = fedprox.train(config, population=population)
    assert any(row["gamma_max"] for row in here.history[1:])
    for workers in (1, 3):
        assert_same(here, on_ray(config, workers, population=population)[0])


@pytest.mark.parametrize("solver", ["adam", "lbfgs", "svrg"])
def test_every_kind_of_solver_and_both_samplings(on_ray, solver):
    devices = {"per_round": 30, "sampling": "proportional", "stragglers": 0.5}
    config = {**BASE, "devices": devices, "solver": {"name": solver, "epochs": 3}}
    population = population_of(SIZES)
    assert_same(fedprox.train(config, population=population), on_ray(config, 1, population=population)[0])


def test_objects_of_ones_own_and_a_second_draw(on_ray):
    def halve(params, x, y, subproblem, budget, key):
        return {name: value - 0.1 * np.float32(len(x)) for name, value in params.items()}, 1

    population = population_of(SIZES)
    config = {**BASE, "method": {"name": "feddane", "second_draw": True, "mu": 0.5}}
    objects: dict[str, Any] = {
        "population": population,
        "solver": opaque(halve),
        "model": fedprox.models.softmax_regression(5, 3),
    }
    assert_same(fedprox.train(config, **objects), on_ray(config, **objects)[0])


def test_a_round_in_which_nobody_is_kept(on_ray):
    config = {"rounds": 2, "method": {"name": "fedavg"}, "devices": {"per_round": 3, "stragglers": 1.0}}
    population = population_of(SIZES)
    there, _ = on_ray(config, population=population)
    assert_same(fedprox.train(config, population=population), there)
    assert not any(there.devices[0]["kept"])


@pytest.mark.parametrize("method", ["fedprox", "feddane", "scaffold", "feddyn"])
@pytest.mark.parametrize("checkpoint", [2, 100])
def test_lost_nodes_change_nothing(on_ray, method, checkpoint):
    population = population_of(SIZES)
    config = {**BASE, "rounds": 7, "method": {"name": method}, "checkpoint": {"every": checkpoint}}
    # the first three calls build the actors; then one dies every 13 calls, with all the states that its node held
    there, ray = on_ray(config, deaths=range(14, 400, 13), population=population)
    assert ray.lost > 0
    assert_same(fedprox.train(config, population=population), there)


@pytest.mark.parametrize("deaths", [(25, 29), (35, 40), (45, 50)])
def test_a_node_lost_while_states_are_made_again_is_survived(on_ray, deaths):
    population = population_of(SIZES)
    config = {**BASE, "rounds": 5, "method": {"name": "scaffold"}, "checkpoint": {"every": 100}}
    there, _ = on_ray(config, workers=2, deaths=deaths, population=population)
    assert_same(fedprox.train(config, population=population), there)


LOST = Reference(error=ObjectLostError("its node is gone"))


def line_of_states(length):
    """Return the states of a device that has worked so often and counts it, the last one first; all are lost."""
    states = [RemoteState(LOST, None, copy=0)]
    for _ in range(length):
        states.insert(0, RemoteState(LOST, None, Origin(states[0], Task(0, 1, 1.0, 1.0), None)))
    return states


def test_a_state_is_made_again_over_any_number_of_rounds():
    ray, steps = InProcessRay(), []

    def solve(task, broadcast, before):
        steps.append(task)
        return ray.put(ray.get(before.reference) + 1)

    line, states = line_of_states(5000), States(ray, solve)
    line[4000].reference = ray.put(1000)
    states.repair(line[0])
    assert (ray.get(line[0].reference), len(steps)) == (5000, 4000)
    states.repair(line[0])
    assert len(steps) == 4000
    assert line[-1].reference is LOST  # nobody needs it
    line[4000].reference = line[0].reference = LOST
    assert states.secure({7: line[0]}) == {7: 5000}


@pytest.mark.parametrize(("length", "is_copied"), [(31, False), (32, True), (100, True)])
def test_without_checkpoints_a_state_of_many_origins_is_copied(length, is_copied):
    ray, line = InProcessRay(), line_of_states(length)
    line[0].reference = ray.put(length)
    states = States(ray, lambda task, broadcast, before: pytest.fail("nothing is lost"))
    assert states.take(line[0]) is line[0]
    assert (line[0].copy, line[0].origin is None) == ((length, True) if is_copied else (None, False))


@pytest.mark.parametrize("times", [3, 4])
def test_a_state_lost_between_repair_and_copy_is_made_again(times):
    class Unlucky(States):
        left = times

        def repair(self, state):
            super().repair(state)
            if self.left:
                self.left -= 1
                state.reference = LOST

    ray = InProcessRay()
    (last, _), states = line_of_states(1), Unlucky(ray, lambda task, broadcast, before: ray.put(1))
    if times == 3:
        assert states.secure({0: last}) == {0: 1}
    else:
        with pytest.raises(RunError, match="the state of a device was lost 4 times before it could be copied"):
            states.secure({0: last})


def test_a_resumed_run_goes_on_with_what_devices_remember(on_ray, tmp_path):
    population = population_of(SIZES)
    config = {**BASE, "rounds": 6, "method": {"name": "scaffold"}, "checkpoint": {"every": 2}}
    on_ray({**config, "rounds": 4}, population=population, out=tmp_path / "run")
    resumed, _ = on_ray(config, population=population, out=tmp_path / "run", resume=True, deaths=[9, 20])
    assert_same(fedprox.train(config, population=population), resumed)


def test_work_that_kills_whoever_does_it_ends_the_run(on_ray):
    with pytest.raises(RunError, match="lost 4 times"):
        on_ray(BASE, deaths=["solve"], population=population_of(SIZES))
    with pytest.raises(RunError, match="4 workers of the Ray cluster in a row could not start"):
        on_ray(BASE, deaths=["build"], population=population_of(SIZES))


def test_a_node_lost_while_it_starts_many_actors_is_survived(on_ray):
    population = population_of(SIZES)
    there, ray = on_ray(BASE, workers=9, deaths=range(1, 8), population=population)  # of the nine, seven are lost
    assert len(ray.actors) == 9 + 7
    assert_same(fedprox.train(BASE, population=population), there)


def test_an_error_of_the_work_itself_is_told_as_it_is(on_ray):
    wrong = opaque(lambda params, x, y, subproblem, budget, key: (params, budget + 1), "greedy")
    with pytest.raises(RunError, match="solver greedy on device"):
        on_ray(BASE, population=population_of(SIZES), solver=wrong)
    broken = opaque(lambda params, x, y, subproblem, budget, key: 1 / 0, "broken")  # type: ignore[return-value]
    with pytest.raises(RunError, match=r"solver broken on device .* failed with ZeroDivisionError: division by zero"):
        on_ray(BASE, population=population_of(SIZES), solver=broken)


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
def test_a_failing_hook_is_named_where_the_work_is_done(error, monkeypatch):
    @dataclass(frozen=True)
    class Broken(fedprox.methods.Method):
        name: str = "broken"

        def linear(self, sent, state, gradient):
            raise error("no")

    monkeypatch.setenv("NPROC", "1")  # as an actor does
    population = population_of(SIZES)
    params = {"weight": np.zeros((3, 5), np.float32), "bias": np.zeros(3, np.float32)}
    with pytest.raises(OwnCodeError, match=rf"Broken.linear failed with {error.__name__}: no \(test_ray.py, line"):
        DeviceActor().build(Blueprint(BASE, method=Broken()), population, params)


def test_another_version_on_a_node_is_refused(on_ray, monkeypatch):
    monkeypatch.setattr("fedprox.engines.ray.actor.versions", lambda: {"fedprox": "0", "jax": "0", "numpy": "0"})
    with pytest.raises(RunError, match="every node of the Ray cluster must have fedprox"):
        on_ray(BASE, population=population_of(SIZES))


def test_a_folder_is_opened_where_the_work_is_done(on_ray, tmp_path):
    folder = save_population(population_of(SIZES), tmp_path / "population")
    assert open_population(folder).folder == str(folder)
    config = {**BASE, "data": {"name": "population", "path": str(folder)}}
    assert_same(fedprox.train(config), on_ray(config)[0])
    population = open_population(folder)
    shutil.rmtree(folder)
    with pytest.raises(DataError, match="every node of the cluster must have the population at the same path"):
        on_ray(config, population=population)


def test_chunks_are_whole_subtrees_and_enough_for_everybody():
    for count in (1, 2, 7, 10, 64, 100, 1000):
        for workers in (1, 2, 5, 64):
            level = chunk_level(count, workers)
            tasks = [Task(device, 1, 1.0, 1.0) for device in range(count)]
            parts = chunks(tasks, level)
            assert [task for part in parts for _, task in part.asked] == tasks
            assert all(part.span.start == part.index << level for part in parts)
            assert len(parts) >= min(count, 4 * workers)
            assert level == 0 or len(parts) < 8 * workers + 1


class Worker:
    def build(self):
        return "ready"

    def work(self):
        return "done"


def done_in_turn(calls, workers, **settings):
    """Return (position, actor) of the calls, in the order in which a pool has them done."""
    cluster = cluster_of(workers, **settings)

    def start():
        actor = cluster.ray.remote()(Worker).remote()
        return actor, actor.build.remote()

    pool = Pool(cluster, workers, start, lambda answer: None)
    pool.wait_until_ready()
    return [(done.position, done.actor) for done in pool.run(calls)]


def test_the_largest_go_first_and_stay_at_home():
    costs = [3, 9, 1, 7, 8, 2]
    calls = [Call("work", tuple, cost) for cost in costs]
    assert [costs[position] for position, _ in done_in_turn(calls, 1)] == sorted(costs, reverse=True)
    # what may be anywhere or is at home here goes before what is at home elsewhere
    calls = [Call("work", tuple, cost, home=home) for cost, home in ((6, 2), (8, None), (7, 0), (9, 1))]
    assert [position for position, _ in done_in_turn(calls, 1)] == [1, 2, 3, 0]


def test_a_slow_actor_holds_back_only_the_call_it_is_at():
    done = done_in_turn([Call("work", tuple, 1)] * 20, 3, slow=[1])
    assert [actor for _, actor in done].index(1) == 19
    assert sorted(position for position, _ in done) == list(range(20))


def test_a_slow_actor_has_one_chunk_of_a_round(on_ray):
    config = {"rounds": 4, "devices": {"per_round": 11}, "solver": {"epochs": 1}}
    population = population_of(SIZES)
    there, ray = on_ray(config, workers=2, slow=[1], population=population)
    quick, slow = (actor.called.count("solve") for actor in ray.actors)
    assert slow == 4
    assert quick >= 4 * 3
    assert_same(fedprox.train(config, population=population), there)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"address": "127.0.0.1:1"}, "`engine.address` must be left out with engine.name = 'local'"),
        ({"name": "ray", "address": "ray://here:10001"}, "`engine.address` must be host:port"),
        ({"name": "ray", "address": "here"}, "`engine.address` must be host:port"),
        ({"name": "dask"}, "`engine.name` must be one of local, ray"),
        ({"name": "ray", "workers": 10_000}, "`engine.workers` must be at most"),
    ],
)
def test_bad_settings(settings, message, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with pytest.raises(ConfigError, match=message):
        fedprox.train({"rounds": 1, "engine": settings})


def test_no_cluster_no_token_no_ray(monkeypatch, tmp_path):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with pytest.raises(ConfigError, match="`RAY_AUTH_MODE` must be set"):
        Cluster("127.0.0.1:1", 0)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(RunError, match=r"no Ray cluster could be joined at 127\.0\.0\.1:1: nothing answers there"):
        fedprox.train({"rounds": 1, "engine": {"name": "ray"}}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    before = dict(os.environ)
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'fedprox\[ray\]'"):
        Cluster("", 0)
    assert {**os.environ, "RAY_ADDRESS": before["RAY_ADDRESS"]} == before  # the environment is left as it was


@pytest.fixture
def connected(monkeypatch):
    """This process is part of a cluster with its head at 127.0.0.1:6379."""
    context = SimpleNamespace(gcs_address="127.0.0.1:6379")
    ray = SimpleNamespace(
        is_initialized=lambda: True, get_runtime_context=lambda: context, cluster_resources=lambda: {"CPU": 3.0}
    )
    monkeypatch.setitem(sys.modules, "ray", ray)


@pytest.mark.parametrize("address", ["127.0.0.2:6379", "127.0.0.1:6380", "6379"])
def test_another_cluster_than_the_one_of_this_process_is_refused(connected, address):
    rule = "`engine.address` must be empty or 127.0.0.1:6379, the Ray cluster that this process is connected to already"
    with pytest.raises(ConfigError, match=re.escape(f"{rule}; got {address!r}")):
        Cluster(address, 0)


@pytest.mark.parametrize("address", ["", "auto", "local", "127.0.0.1:6379", "localhost:6379"])
def test_the_cluster_of_this_process_is_used(connected, address, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.2:6379")  # for a process that is not part of one yet
    cluster = Cluster(address, 0)
    cluster.close()
    assert cluster.workers == 3


def test_the_folder_of_a_dead_process_is_removed_and_that_of_a_living_one_stays(tmp_path, monkeypatch):
    from fedprox.engines.ray import cluster

    monkeypatch.setattr(cluster.tempfile, "gettempdir", lambda: str(tmp_path))  # type: ignore[attr-defined]
    monkeypatch.setattr(cluster, "_SHORT", 1000)
    (dead, lock), (living, held) = cluster._private_folder(), cluster._private_folder()
    lock.close()
    new, other = cluster._private_folder()
    assert sorted(tmp_path.iterdir()) == sorted([living, new])
    assert not dead.exists()
    held.close()
    other.close()


@pytest.mark.parametrize("address", ["", "127.0.0.1:6379"])
def test_a_termination_while_a_cluster_starts_ends_with_its_code(tmp_path, monkeypatch, address):
    from fedprox.engines.ray import cluster

    utilities = pytest.importorskip("ray._private.utils")
    stopped = []

    def init(**arguments):
        utilities.set_sigterm_handler(lambda number, frame: sys.exit(number))  # as Ray does
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)

    fake = SimpleNamespace(init=init, shutdown=lambda: stopped.append(True), is_initialized=lambda: False)
    monkeypatch.setattr(cluster, "_import_ray", lambda: fake)
    monkeypatch.setattr(cluster, "_checked", lambda address: "127.0.0.1")
    before = signal.getsignal(signal.SIGTERM), utilities.set_sigterm_handler
    with pytest.raises(SystemExit) as ended:
        Cluster(address, 0)
    assert ended.value.code == 143
    assert stopped  # also what was half started
    assert (signal.getsignal(signal.SIGTERM), utilities.set_sigterm_handler) == before


@pytest.mark.parametrize("address", ["", "127.0.0.1:6379"])
def test_ray_is_not_started_in_the_current_folder(tmp_path, monkeypatch, address):
    """Its workers would import any module from there, before all others."""
    from fedprox.engines.ray import cluster

    places = []

    def init(**arguments):
        places.append((Path.cwd(), list(Path.cwd().glob("*.py"))))
        raise ConnectionError("far enough")

    (tmp_path / "queue.py").write_text("raise SystemExit('run from the current folder')")
    monkeypatch.chdir(tmp_path)
    fake = SimpleNamespace(init=init, shutdown=lambda: None, is_initialized=lambda: False)
    monkeypatch.setattr(cluster, "_import_ray", lambda: fake)
    monkeypatch.setattr(cluster, "_checked", lambda address: "127.0.0.1")
    with pytest.raises(RunError, match="far enough"):
        Cluster(address, 0)
    assert Path.cwd() == tmp_path
    assert places[0][0] != tmp_path
    assert places[0][1] == []


def test_an_actor_searches_last_where_the_run_does(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", list(dict.fromkeys(sys.path)))
    DeviceActor([*sys.path, str(tmp_path)])
    assert sys.path[-1] == str(tmp_path)
    assert len(sys.path) == len(set(sys.path))


# real clusters from here on


CONFIG = """
rounds = 120
[data]
name = "npz"
path = "{data}"
[method]
name = "scaffold"
[solver]
epochs = 3
[devices]
per_round = 8
stragglers = 0.5
[measure]
every = 40
dissimilarity = false
[checkpoint]
every = 10
"""


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """A config whose device states are too large for Ray to keep them with the driver, and its undisturbed run."""
    folder = tmp_path_factory.mktemp("story")
    random = np.random.default_rng(0)
    x, device = random.normal(size=(600, 3000)).astype(np.float32), np.arange(600) % 30
    np.savez(folder / "data.npz", x=x, y=(x[:, :10] + 0.1 * device[:, None]).argmax(axis=1), device=device)
    (folder / "run.toml").write_text(CONFIG.format(data=folder / "data.npz"))
    fedprox.train(folder / "run.toml", out=folder / "undisturbed")
    return folder


def marked(mark):
    """Return the processes, by number, that have inherited a mark in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def session(process):
    """Return number and command of all living processes of a session, by the process that began it."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(folder.name)) == process.pid and ") Z " not in (folder / "stat").read_text():
                found[int(folder.name)] = (folder / "cmdline").read_bytes().strip(b"\0 ").decode()
        except OSError:
            continue
    return found


def end_session(process):
    """Kill a process and all of its session, as when a machine is switched off."""
    while left := session(process):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if process.poll() is None:
            process.wait()


def wait_for(condition, seconds=600.0, what="it"):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.05)
    return found


def lines(out):
    file = out / "devices.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def fedprox_run(story, out, *more, **environment):
    command = [sys.executable, "-m", "fedprox", "run", str(story / "run.toml"), "--out", str(out), *more]
    return subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("end", ["os._exit(1)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_last_words_are_said_if_the_process_ends_at_once(end):
    assert last_words_before(end).stderr == "a sentence\n"


@pytest.mark.parametrize("end", ["words.close()", "words._shell.kill(); words.close()"])
def test_last_words_are_kept_after_a_goodbye(end):
    ended = last_words_before(end)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_last_words_outlive_an_interrupt_of_the_whole_group():
    group = "os.killpg(0, signal.SIGINT)"
    ended = last_words_before(f"signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(0.5); {group}; os._exit(1)")
    assert ended.stderr == "a sentence\n"


def last_words_before(end):
    program = f"""
import os, signal, time
import runpy  # of one file, without the packages around it, which take seconds to import
words = runpy.run_path({exit_message.__file__!r})["LastWords"]("a sentence")
{end}
"""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, start_new_session=True)


@pytest.fixture
def two_nodes(tmp_path_factory):
    """Two nodes with one CPU each, at 127.0.0.2 and 127.0.0.3; yields their processes and how to join them."""
    pytest.importorskip("ray", reason="ray is not installed")
    folder = Path("/tmp") / f"fedprox-test-{uuid.uuid4().hex[:8]}"
    folder.mkdir(mode=0o700)
    (folder / "token").touch(mode=0o600)
    (folder / "token").write_text(uuid.uuid4().hex * 2)
    with socket.socket() as free:
        free.bind(("127.0.0.2", 0))
        port = free.getsockname()[1]
    join = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(folder / "token"), "RAY_ADDRESS": f"127.0.0.2:{port}"}
    environment = {name: value for name, value in {**os.environ, **join}.items() if name != "RAY_ADDRESS"}
    environment |= {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": os.pathsep.join(sys.path)}

    def node(*arguments):
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *arguments, "--num-cpus=1", "--block"]
        with (folder / "log").open("ab") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)

    nodes = []
    try:
        nodes.append(
            node(
                "--head",
                "--node-ip-address=127.0.0.2",
                f"--port={port}",
                "--include-dashboard=false",
                f"--temp-dir={folder}",
            )
        )
        wait_for(lambda: answers("127.0.0.2", port), what="the head")
        nodes.append(node(f"--address=127.0.0.2:{port}", "--node-ip-address=127.0.0.3"))
        wait_for(
            lambda: b"Ray runtime started" in (folder / "log").read_bytes().rpartition(b"Local node IP: 127.0.0.3")[2]
        )
        yield (*nodes, join)
    finally:
        for process in nodes:
            end_session(process)
        shutil.rmtree(folder)


def answers(host, port):
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


@pytest.mark.usefixtures("started_anew")
def test_a_node_lost_the_cluster_lost_the_driver_stopped_and_killed(story, two_nodes, tmp_path):
    head, other, join = two_nodes
    out = tmp_path / "run"

    # a node is lost, with the states it held: the run goes on with the other one
    run = fedprox_run(story, out, "-s", "engine.name=ray", **join)
    wait_for(lambda: lines(out) >= 13 or run.poll() is not None, what="rounds")
    assert run.poll() is None, run.communicate()
    end_session(other)
    at = lines(out)
    wait_for(lambda: lines(out) >= at + 10 or run.poll() is not None, what="rounds after the loss of a node")
    assert run.poll() is None, run.communicate()

    # the whole cluster is lost: one sentence
    end_session(head)
    _, errors = run.communicate(timeout=90)
    assert run.returncode == 1
    (said,) = [line for line in errors.splitlines() if line.startswith("fedprox: ")]
    # Ray itself ends the process at once if it is just about to write into the store of the node under it
    assert re.match("fedprox: the (head of the Ray cluster at .* is lost|process had to end at once)", said)
    assert "--resume" in said
    assert "Traceback" not in errors

    # resumed on a cluster of its own, and terminated: the round is finished and nobody is left
    run = fedprox_run(story, out, "--resume", "-s", "engine.name=ray")
    at = lines(out)
    wait_for(lambda: (lines(out) >= 13 and lines(out) != at) or run.poll() is not None, what="rounds after a resume")
    assert len(session(run)) > 5
    run.terminate()
    _, errors = run.communicate(timeout=90)
    assert run.returncode == 143, errors
    wait_for(lambda: session(run) == {}, 10, "all processes to end")

    # resumed again, and killed: the system kills the others, and two small helpers of Ray's end after a minute
    at = lines(out)
    run = fedprox_run(story, out, "--resume", "-s", "engine.name=ray")
    wait_for(lambda: lines(out) > at or run.poll() is not None, what="rounds after a second resume")
    run.kill()
    assert "fedprox: the process had to end at once" in run.communicate()[1]
    helpers = {"ray::DashboardAgent", "ray::RuntimeEnvAgent"}
    wait_for(lambda: set(session(run).values()) <= helpers, 20, "all processes to end")
    end_session(run)

    # ended at last by the local engine: as if nothing had happened
    run = fedprox_run(story, out, "--resume")
    _, errors = run.communicate(timeout=90)
    assert run.returncode == 0, errors
    for name in ("metrics", "devices", "evaluation"):
        ours, theirs = (
            without_times(json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines())
            for folder in (out, story / "undisturbed")
        )
        assert ours == theirs
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (out, story / "undisturbed"))
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


def test_a_cluster_of_our_own_is_private_and_survives_an_actor_killed_at_work(monkeypatch, tmp_path):
    pytest.importorskip("ray", reason="ray is not installed")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    mark = uuid.uuid4().hex
    monkeypatch.setenv("FEDPROX_MARK", mark)
    cluster = Cluster("", 2)
    try:
        token = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        assert stat.S_IMODE(token.parent.stat().st_mode) == 0o700
        shift, order, killed = np.float32(0.125), tmp_path / "order", tmp_path / "killed"

        def step(params, x, y, subproblem, budget, key):
            with contextlib.suppress(FileNotFoundError):
                order.rename(killed)  # one actor alone finds it
                killed.write_text(str(os.getpid()))
                os.kill(os.getpid(), signal.SIGKILL)
            return {name: value + shift * len(x) for name, value in params.items()}, budget

        actors = set()

        def look_and_kill_one(progress):
            if progress.round == 1:
                actors.update(pid for pid, command in commands(mark).items() if "DeviceActor" in command)
                assert_private(mark)
            if progress.round == 2:
                order.touch()

        config = {"rounds": 4, "method": {"name": "feddyn"}, "devices": {"stragglers": 0.5}}
        objects = {"solver": opaque(step)}
        ray_config = {**config, "engine": {"name": "ray", "workers": 2}}
        there = fedprox.train(ray_config, callbacks=[look_and_kill_one], **objects)
        assert len(actors) == 2
        assert int(killed.read_text()) in actors
        assert_same(fedprox.train(config, **objects), there)
        assert there.summary["workers"] == 2
    finally:
        cluster.close()
    assert not token.parent.exists()
    assert "RAY_AUTH_TOKEN_PATH" not in os.environ
    wait_for(lambda: not [pid for pid in marked(mark) if pid != os.getpid()], 30, "all processes to end")


def commands(mark):
    """Return number and command of the processes that have inherited a mark."""
    found = {}
    for pid in marked(mark):
        with contextlib.suppress(OSError):
            found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def assert_private(mark):
    """Make sure that a cluster listens on the loopback address alone, shows no page and reports to nobody."""
    theirs = commands(mark)
    assert {address for pid in (*theirs, os.getpid()) for address in listening(pid)} == {"127.0.0.1"}
    # Ray's Python processes write their titles over their environment; those that start them do not
    servers = {pid: command for pid, command in theirs.items() if command and not command.startswith("ray::")}
    assert {"gcs_server", "raylet"} <= {Path(command.split()[0]).name for command in servers.values()}
    for pid, command in servers.items():
        assert b"RAY_USAGE_STATS_ENABLED=0" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"), command
        if "dashboard.py" in command:  # it stays as the home of the statistics, which are off
            assert "--disable-frontend" in command.split()
            assert list(listening(pid)) == []


def listening(pid):
    """Return the addresses on which a process waits for connections."""
    sockets = {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = row.split()
            if state == "0A" and f"socket:[{rest[5]}]" in sockets:
                words = bytes.fromhex(local.partition(":")[0])
                last = words[-4:][::-1]  # an IPv4 address, by itself or mapped into IPv6
                yield ".".join(map(str, last))
