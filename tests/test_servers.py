"""Servers on the clock: over-selection, and replies that are merged as they arrive."""

import itertools

import numpy as np
import pytest

import fedprox
from conftest import population_of
from fedprox.cli import main
from fedprox.config import Config
from fedprox.core.files import read_tensors
from fedprox.participation.budget import minibatches, split_batches
from fedprox.participation.clock.availability import candidate_blocks
from fedprox.participation.clock.over_selection import first_replies, number_asked
from in_process_ray import cluster_of
from reference_fedprox import local_solve
from reference_servers import follow, train, weights_of
from test_clock import sleepy, trace_file, without_times
from test_limits import same_bits

__all__ = ["sleepy", "trace_file"]  # fixtures

SOLVER = {"epochs": 2, "batch_size": 4, "learning_rate": 0.1}
SPEEDS = [5.0, 11.0, 3.0, 7.0, 2.0, 13.0, 17.0, 4.0]
SIZES = [7, 23, 4, 31, 12, 9, 16, 20]


@pytest.fixture(scope="module")
def population():
    return population_of(SIZES, test=2)


@pytest.fixture(scope="module")
def equal_population():
    return population_of([12] * 9, test=2)


def on_clock(server, **more):
    return {"model": "clock", "profile": "equal", "server": server, **more}


def config(server, *, method=None, devices=None, rounds=6, **systems):
    given = {"per_round": 3, **(devices or {})}
    settings = {"rounds": rounds, "solver": SOLVER, "devices": given, "systems": on_clock(server, **systems)}
    return {**settings, "method": method or {"mu": 0.3}}


def common(rows, others):
    """Assert that rows agree in what both have, but for real time and the deadline."""
    for row, other in zip(rows, others, strict=True):
        names = (set(row) & set(other)) - {"deadline", "solve_seconds", "measure_seconds"}
        names -= set() if "device" in row else {"seconds"}
        assert {name: row[name] for name in names} == {name: other[name] for name in names}


# limits


@pytest.mark.parametrize("sampling", ["uniform", "proportional"])
@pytest.mark.parametrize(
    "method",
    [
        {"name": "fedavg"},
        {"mu": 0.5},
        {"mu": "adaptive"},
        {"mu": "drift"},
        {"name": "fedexprox", "mu": 0.5},
        {"name": "fedavgm"},
        {"name": "fedadam"},
        {"name": "fedyogi"},
        {"name": "fednova", "mu": 0.1},
    ],
)
def test_equal_reply_times_with_a_buffer_of_k_are_synchronous_rounds_bit_for_bit(equal_population, method, sampling):
    devices = {"per_round": 4, "sampling": sampling}
    rounds = config("synchronous", method=method, devices=devices, deadline="q1")
    events = config("buffered", method=method, devices=devices, concurrency=4, buffer=4)
    one, other = (fedprox.train(each, population=equal_population) for each in (rounds, events))
    assert same_bits(one.params, other.params)
    common(one.history, other.history)
    common(one.devices, other.devices)
    assert all(set(row["staleness"]) == {0} for row in other.devices)


def test_one_device_at_work_that_moves_the_model_all_the_way_is_a_round_of_one(population):
    devices = {"per_round": 1}
    rounds = config("synchronous", devices=devices, deadline="q1")
    events = config("asynchronous", devices=devices, concurrency=1, mixing=1.0)
    one, other = (fedprox.train(each, population=population) for each in (rounds, events))
    assert same_bits(one.params, other.params)
    common(one.history, other.history)


def test_a_reply_moves_the_model_by_the_mixing_of_its_way(population):
    events = [config("asynchronous", devices={"per_round": 1}, rounds=1, concurrency=1, mixing=m) for m in (1.0, 0.25)]
    whole, part = (fedprox.train(each, population=population) for each in events)
    for name in whole.params:  # softmax regression starts at zero
        np.testing.assert_array_equal(part.params[name], np.float32(0.25) * whole.params[name])
    assert part.devices[0]["mixing"] == 0.25


@pytest.mark.parametrize("method", [{"name": "fedavg"}, {"mu": 0.5}])
@pytest.mark.parametrize("deadline", ["q0.5", 3.0])
def test_over_selection_of_1_is_synchronous_bit_for_bit(population, sleepy, method, deadline):
    systems = {**sleepy, "deadline": deadline}
    rounds = {"rounds": 8, "solver": SOLVER, "method": method, "devices": {"per_round": 4, "failure": 0.2}}
    one = fedprox.train({**rounds, "systems": systems}, population=population)
    over = {**systems, "server": "over_selection", "over_selection": 1.0}
    other = fedprox.train({**rounds, "systems": over}, population=population)
    assert same_bits(one.params, other.params)
    assert without_times(one.devices) == without_times(other.devices)
    assert without_times(one.history) == without_times(other.history)
    assert any(any(row["straggler"]) for row in one.devices)


# the reference


def orders(population, seed, per_round):
    """Return the order in which devices are asked at each version, which is drawn."""

    def order_at(version):
        blocks = candidate_blocks("uniform", per_round, population.train.offsets, seed, version + 1, 10**6)
        return [int(device) for block in blocks for device in block]

    return order_at


def traced(trace_file, server, **systems):
    file = trace_file([{"samples_per_second": speed} for speed in SPEEDS])
    return config(server, rounds=25, trace=file, profile="", **systems)


@pytest.mark.parametrize(
    ("server", "concurrency", "buffer", "staleness"),
    [
        ("buffered", 5, 3, 0.5),
        ("buffered", 8, 2, 1.0),
        ("buffered", 3, 3, 0.5),
        ("buffered", 8, 8, 0.5),
        ("buffered", 6, 4, 0.0),
        ("buffered", 100, 5, 0.5),
        ("asynchronous", 4, 1, 0.5),
        ("asynchronous", 100, 1, 0.0),
    ],
)
def test_events_staleness_weights_and_models_are_those_of_the_reference(
    population, trace_file, server, concurrency, buffer, staleness
):
    keys = {"buffer": buffer} if server == "buffered" else {}
    systems = {"concurrency": concurrency, "staleness": staleness, **keys}
    settings = traced(trace_file, server, **systems)
    result = fedprox.train(settings, population=population)
    model_bytes = 4 * (3 * 5 + 3)
    seconds = [2 * model_bytes / 1e3 + 2 * size / speed for size, speed in zip(SIZES, SPEEDS, strict=True)]
    merges = follow(seconds, orders(population, 0, 3), min(concurrency, len(SIZES)), buffer, versions=25)
    assert len(result.devices) == 25
    for version, (row, (time, merge)) in enumerate(zip(result.devices, merges, strict=True)):
        assert list(zip(row["device"], row["version"], strict=True)) == merge
        assert row["staleness"] == [version - given for _, given in merge]
        np.testing.assert_allclose(row["weight"], weights_of(merge, SIZES, version, staleness), rtol=1e-12)
        np.testing.assert_allclose(result.history[version + 1]["simulated_seconds"], time, rtol=1e-9)
        assert result.history[version + 1]["staleness_max"] == max(row["staleness"])
    if staleness == 0 and server == "buffered":
        sizes = [[SIZES[device] for device in row["device"]] for row in result.devices]
        for row, own in zip(result.devices, sizes, strict=True):
            np.testing.assert_array_equal(row["weight"], np.array(own) / np.sum(own))
    assert any(max(row["staleness"]) for row in result.devices) or buffer >= min(concurrency, len(SIZES))

    train_samples, mu = population.train, 0.3
    offsets = train_samples.offsets

    def solve(device, version, model):
        begin, end = offsets[device], offsets[device + 1]
        size = int(end - begin)
        steps = 2 * -(-size // 4)
        pieces = minibatches(size, 4, steps, seed=0, round=version + 1, device=device, piece=64)
        batches = [rows for piece in pieces for rows in split_batches(piece, size)]
        x, y = np.asarray(train_samples.x[begin:end]), np.asarray(train_samples.y[begin:end])
        weight, bias = local_solve(model[:15].reshape(3, 5), model[15:], x, y, batches, 0.1, mu)
        return np.concatenate([weight.ravel(), bias])

    mixing = 0.6 if server == "asynchronous" else None
    models = train(np.zeros(18), merges, SIZES, staleness, solve, mixing)
    found = np.concatenate([np.asarray(result.params["weight"]).ravel(), np.asarray(result.params["bias"])])
    np.testing.assert_allclose(found, models[-1], atol=2e-5)


def test_at_one_instant_come_replies_then_the_model_then_requests(equal_population):
    result = fedprox.train(config("buffered", concurrency=6, buffer=2), population=equal_population)
    assert [row["staleness"] for row in result.devices] == [[0, 0], [1, 1], [2, 2]] * 2
    times = result.history.column("simulated_seconds")
    assert times[1] == times[2] == times[3] < times[4] == times[5] == times[6]
    assert [row["version"] for row in result.devices[3:]] == [[3, 3]] * 3  # nobody was asked at versions 1 and 2


def test_a_device_is_asked_at_most_once_per_version_and_works_once_at_a_time(population, trace_file):
    result = fedprox.train(traced(trace_file, "buffered", concurrency=8, buffer=3), population=population)
    asked = [
        (device, version, begin, begin + took)
        for row in result.devices
        for device, version, begin, took in zip(
            *(row[name] for name in ("device", "version", "asked_at", "seconds")), strict=True
        )
    ]
    assert len({(device, version) for device, version, *_ in asked}) == len(asked)
    for device in range(len(SIZES)):
        spans = sorted(each[2:] for each in asked if each[0] == device)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))


# over-selection


def test_first_replies_follow_time_then_the_list():
    needed = np.array([5.0, 1.0, 3.0, 3.0, 2.0])
    everybody = np.ones(5, bool)
    assert first_replies(needed, everybody, np.ones(5, int), 3).tolist() == [False, True, True, False, True]
    assert first_replies(needed, everybody, np.array([1, 2, 1, 1, 1]), 3).tolist() == [False, True, False, False, True]
    assert first_replies(needed, needed < 3, np.ones(5, int), 3) is None
    assert number_asked(Config.of({"systems": on_clock("over_selection", over_selection=1.25)}).systems, 10) == 13


def test_over_selection_worked_by_hand(trace_file):
    """Devices of 10 samples that take 1, 2, 3 and 4 seconds and 0.24 of transfer; the first two of four count."""
    population = population_of([10] * 4, features=5, classes=5)
    file = trace_file([{"samples_per_second": 10.0 / seconds} for seconds in (1, 2, 3, 4)])
    systems = {"model": "clock", "server": "over_selection", "over_selection": 2.0, "trace": file, "deadline": "q1"}
    for method, kept in (({"name": "fedavg"}, [True, True, False, False]), ({"mu": 0.0}, [True] * 4)):
        settings = {
            "rounds": 1,
            "solver": {"epochs": 1, "batch_size": 2, "learning_rate": 0.1},
            "devices": {"per_round": 2},
            "method": method,
            "systems": systems,
        }
        result = fedprox.train(settings, population=population)
        row = result.devices[0]
        own = {name: [row[name][row["device"].index(device)] for device in range(4)] for name in ("kept", "budget")}
        assert own == {"kept": kept, "budget": [5, 5, 3, 2]}  # in 2 s: two of 5 and three of 5 batches fit
        assert result.history[-1]["simulated_seconds"] == pytest.approx(2.24)
        assert result.history[-1]["wasted_seconds"] == pytest.approx(0.0 if all(kept) else 2 * 2.24)


def test_ties_in_over_selection_are_dropped_by_fedavg_and_merged_by_fedprox(equal_population):
    for method, kept in (({"name": "fedavg"}, 4), ({"mu": 0.1}, 6)):
        settings = config("over_selection", method=method, devices={"per_round": 4}, over_selection=1.5)
        row = fedprox.train(settings, population=equal_population).devices[0]
        assert (len(row["device"]), sum(row["kept"])) == (6, kept)
        assert row["kept"][:4] == [True] * 4


# deadlines, failures and devices that go away


def test_a_deadline_in_seconds_bounds_the_work_of_one_device(population, trace_file):
    lost = fedprox.train(
        traced(trace_file, "buffered", concurrency=8, buffer=2, deadline=6.0) | {"method": {"name": "fedavg"}},
        population=population,
    )
    kept = fedprox.train(traced(trace_file, "buffered", concurrency=8, buffer=2, deadline=6.0), population=population)
    for row in (*lost.devices, *kept.devices):
        assert max(row["seconds"]) <= 6.0
    cut = [(each, took) for row in lost.devices for each, took in zip(row["kept"], row["seconds"], strict=True)]
    assert {took for each, took in cut if not each} == {6.0}
    assert lost.history[-1]["wasted_seconds"] == pytest.approx(6.0 * sum(not each for each, _ in cut))
    assert lost.history[-1]["wasted_seconds"] > 0
    assert kept.history[-1]["wasted_seconds"] == 0
    partial = [
        (steps, budget)
        for row in kept.devices
        for steps, budget, late in zip(row["steps"], row["budget"], row["straggler"], strict=True)
        if late
    ]
    assert partial
    assert all(steps == budget > 0 for steps, budget in partial)


def test_failures_leave_their_place_and_the_buffer_waits_for_others(population, trace_file):
    settings = traced(trace_file, "buffered", concurrency=4, buffer=3)
    settings["devices"] = {"per_round": 3, "failure": 0.34}
    result = fedprox.train(settings, population=population)
    failed = [any(row.get("failed", [])) for row in result.devices]
    assert any(failed)
    for row in result.devices:
        assert sum(row["kept"]) == 3
        assert sum(row["weight"]) == pytest.approx(1)
        assert [not each for each in row["kept"]] == row.get("failed", [False] * len(row["kept"]))


def test_when_all_fail_the_model_stays_and_versions_go_on(population):
    settings = config("buffered", devices={"failure": 1.0}, rounds=2, concurrency=4, buffer=2)
    result = fedprox.train(settings, population=population)
    assert all(not np.any(leaf) for leaf in result.params.values())
    assert [len(row["device"]) for row in result.devices] == [len(SIZES)] * 2
    assert result.history[-1]["staleness_mean"] is None


def test_devices_that_go_away(population, sleepy):
    settings = {"rounds": 30, "solver": SOLVER, "devices": {"per_round": 3}, "method": {"mu": 0.1}}
    systems = {**sleepy, "deadline": "q0.8", "server": "buffered", "concurrency": 6, "buffer": 3}
    result = fedprox.train({**settings, "systems": systems}, population=population)
    assert any(row["away"] for row in result.devices)
    assert any(any(row["straggler"]) for row in result.devices)


def test_a_server_without_devices_waits_in_vain(population, trace_file):
    file = trace_file([{"available": [[0, 10]], "period_seconds": 1e9}] * len(SIZES))
    settings = config("asynchronous", rounds=50, trace=file, profile="", concurrency=2)
    with pytest.raises(fedprox.FedProxError, match="no device was available for 604800 simulated seconds"):
        fedprox.train(settings, population=population)


# the same bits everywhere


SERVERS = [
    {"server": "buffered", "concurrency": 6, "buffer": 3},
    {"server": "asynchronous", "concurrency": 5},
    {"server": "over_selection", "over_selection": 1.6},
]


@pytest.mark.parametrize("server", SERVERS)
def test_one_worker_and_two_give_the_same_bits(population, sleepy, server):
    settings = {"rounds": 12, "solver": SOLVER, "devices": {"per_round": 3, "failure": 0.2}, "method": {"mu": "drift"}}
    settings["systems"] = {**sleepy, "deadline": "q0.8", **server}
    one, two = (fedprox.train({**settings, "engine": {"workers": n}}, population=population) for n in (1, 2))
    assert same_bits(one.params, two.params)
    assert without_times(one.devices) == without_times(two.devices)
    assert without_times(one.history) == without_times(two.history)


@pytest.mark.parametrize("more", [{}, {"solver": {**SOLVER, "gamma": 0.5}}, {"method": {"name": "fedadam"}}])
@pytest.mark.parametrize("server", SERVERS)
def test_a_run_resumed_in_mid_flight_equals_an_uninterrupted_one(population, sleepy, server, more, tmp_path):
    settings = {"rounds": 13, "solver": SOLVER, "devices": {"per_round": 3}, "method": {"mu": "drift"}, **more}
    settings["systems"] = {**sleepy, "deadline": "q0.8", **server}
    settings["checkpoint"] = {"every": 2}
    straight = fedprox.train(settings, population=population, out=tmp_path / "straight")
    fedprox.train({**settings, "rounds": 4}, population=population, out=tmp_path / "run")
    resume = {"population": population, "out": tmp_path / "run", "resume": True}
    fedprox.train({**settings, "rounds": 7}, **resume)
    resumed = fedprox.train(settings, **resume)
    assert same_bits(straight.params, resumed.params)
    assert without_times(straight.devices) == without_times(resumed.devices)
    assert without_times(straight.history) == without_times(resumed.history)


def test_staleness_is_that_of_all_replies_since_the_last_measured_version(population, trace_file, tmp_path):
    settings = traced(trace_file, "asynchronous", concurrency=4) | {"measure": {"every": 5}}
    result = fedprox.train(settings, population=population)
    for row in result.history[1:]:
        merged = [each for own in result.devices[row["round"] - 5 : row["round"]] for each in own["staleness"]]
        assert row["staleness_mean"] == np.mean(merged)
        assert row["staleness_max"] == max(merged)


def test_a_checkpoint_holds_each_version_at_work_once(population, trace_file, tmp_path):
    settings = traced(trace_file, "buffered", concurrency=8, buffer=2)
    fedprox.train(settings, population=population, out=tmp_path / "run")
    tensors, values = read_tensors(tmp_path / "run" / "checkpoint" / "state.safetensors")
    at_work = values["state"]["timeline"]["at_work"]
    versions = {row[1] for row in at_work}
    assert len(at_work) == 7  # one has just replied
    assert {name.split(".")[1] for name in tensors if name.startswith("version.")} == {str(each) for each in versions}
    assert len([name for name in tensors if name.startswith("version.")]) == 2 * len(versions)


@pytest.mark.parametrize("server", SERVERS[:2])
def test_ray_gives_the_bits_of_the_local_engine(server, monkeypatch):
    monkeypatch.setattr("fedprox.engines.ray.Cluster", lambda address, workers: cluster_of(2))
    settings = {"rounds": 8, "solver": SOLVER, "method": {"mu": "drift"}, "measure": {"gamma": True}}
    settings["systems"] = {"model": "clock", **server}
    one = fedprox.train(settings)
    other = fedprox.train({**settings, "engine": {"name": "ray"}})
    assert same_bits(one.params, other.params)
    assert without_times(one.devices) == without_times(other.devices)


def test_an_attacked_mean_is_merged_reply_by_reply(population, trace_file):
    settings = traced(trace_file, "buffered", concurrency=6, buffer=3)
    plain = fedprox.train(settings, population=population)
    attacked = fedprox.train({**settings, "attack": {"share": 0.25}}, population=population)
    assert plain.devices.column("device") == attacked.devices.column("device")
    assert not same_bits(plain.params, attacked.params)


def test_work_that_ends_early_replies_early(population, trace_file):
    settings = traced(trace_file, "buffered", concurrency=4, buffer=2)
    settings["solver"] = {**SOLVER, "epochs": 10, "gamma": 0.6}
    result = fedprox.train(settings, population=population)
    early = [
        steps < budget for row in result.devices for steps, budget in zip(row["steps"], row["budget"], strict=True)
    ]
    assert any(early)
    for row in result.devices:
        for device, steps, took in zip(row["device"], row["steps"], row["seconds"], strict=True):
            epochs, rest = divmod(steps, -(-SIZES[device] // 4))
            seen = epochs * SIZES[device] + min(rest * 4, SIZES[device])
            assert took == pytest.approx(2 * 72 / 1e3 + seen / SPEEDS[device])


# bad input


@pytest.mark.parametrize(
    ("systems", "sentence"),
    [
        ({"server": "buffered"}, "`systems.server` must be 'synchronous' unless systems.model = 'clock'"),
        ({"model": "clock", "server": "fedbuff"}, "`systems.server` must be one of synchronous, over_selection"),
        (on_clock("buffered", buffer=101), "`systems.buffer` must be at most `systems.concurrency`, 100"),
        (on_clock("buffered", buffer=0), "`systems.buffer` must be an integer >= 1; got 0"),
        (on_clock("over_selection", over_selection=0.9), "`systems.over_selection` must be a number >= 1; got 0.9"),
        (on_clock("buffered", staleness=-1.0), "`systems.staleness` must be a number >= 0; got -1.0"),
        (on_clock("asynchronous", mixing=1.5), r"`systems.mixing` must be a number in \(0, 1\]; got 1.5"),
        (on_clock("asynchronous", buffer=5), "`systems.buffer` must be left out unless systems.server = 'buffered'"),
        (on_clock("synchronous", concurrency=5), "must be left out unless systems.server = 'buffered' or 'asynch"),
        (on_clock("buffered", mixing=0.5), "`systems.mixing` must be left out unless systems.server = 'asynchronous'"),
        ({"over_selection": 1.5}, "`systems.over_selection` must be left out unless systems.server = 'over_selection'"),
    ],
)
def test_bad_settings_get_one_sentence(systems, sentence):
    with pytest.raises(fedprox.FedProxError, match=sentence) as error:
        Config.of({"systems": systems})
    assert "\n" not in str(error.value)


def test_bad_settings_end_the_command_with_2(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["fedprox", "run", "synthetic-1-1", "-s", "systems.server=buffered"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "`systems.server` must be 'synchronous' unless" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"method": {"name": "scaffold"}}, "'scaffold', whose devices keep state from round to round"),
        ({"method": {"name": "feddyn"}}, "whose devices keep state"),
        ({"method": {"name": "feddane"}}, "'feddane', which needs gradients of several devices at one model"),
        ({"method": {"name": "sdane", "mu": 1.0}}, "which needs gradients"),
        ({"method": {"name": "ditto"}}, "whose devices keep state"),
        ({"method": {"name": "agnostic"}}, "whose devices keep state"),
        ({"merge": {"rule": "median"}}, "merge.rule = 'median', which compares the replies to one model"),
        ({"privacy": {"clip": 1.0}}, "`privacy.clip`, whose guarantee is for rounds of K devices"),
        ({"personal": {"parameters": ["bias"]}}, "`personal.parameters`, which devices keep"),
    ],
)
@pytest.mark.parametrize("server", ["buffered", "asynchronous"])
def test_what_has_no_meaning_is_refused_in_one_sentence(population, more, sentence, server, tmp_path):
    settings = {"rounds": 1, "systems": on_clock(server, concurrency=8, **({"buffer": 2} if server[0] == "b" else {}))}
    with pytest.raises(fedprox.FedProxError, match=sentence) as error:
        fedprox.train({**settings, "devices": {"per_round": 3}, **more}, population=population, out=tmp_path / "run")
    assert str(error.value).startswith("`systems.server` must be 'synchronous' or 'over_selection' with ")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_method_that_merges_replies_itself_is_refused(population):
    method = fedprox.methods.Method("own", needs_every_reply=True)
    with pytest.raises(fedprox.FedProxError, match=r"method.name = 'own', which compares the replies to one model"):
        fedprox.train(config("asynchronous", concurrency=2), population=population, method=method)


def test_a_buffer_that_cannot_fill_and_samplers_of_ones_own_are_refused(population):
    with pytest.raises(fedprox.FedProxError, match=r"`systems.buffer` must be at most 8, the number of devices"):
        fedprox.train(config("buffered", buffer=20), population=population)
    with pytest.raises(fedprox.FedProxError, match="a sampler of your own"):
        fedprox.train(config("asynchronous"), population=population, sampler=lambda view: [0, 1])
    with pytest.raises(fedprox.FedProxError, match="must be 'synchronous' with a systems model from Python"):
        fedprox.train(config("asynchronous"), population=population, systems=lambda view: view.full_budget)


def test_frozen_parameters_stay_and_statistics_are_averaged(population, trace_file):
    settings = traced(trace_file, "buffered", concurrency=6, buffer=3) | {"personal": {"frozen": ["bias"]}}
    result = fedprox.train(settings, population=population)
    assert not result.params["bias"].any()
    assert result.params["weight"].any()


def test_the_config_of_a_server_survives_its_toml(tmp_path):
    given = Config.of({"systems": on_clock("buffered", concurrency=7, buffer=3, staleness=0.0)})
    file = tmp_path / "config.toml"
    file.write_text(given.to_toml())
    assert Config.of(str(file)) == given
