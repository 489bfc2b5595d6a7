"""Devices with a clock: what fits before the deadline, who can be asked, and what a run makes of it."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedprox
from conftest import population_of
from fedprox import methods
from fedprox.config import Config
from fedprox.methods.traffic import measure_traffic
from fedprox.participation.clock import build_clock, read_profile, read_trace, write_profile
from fedprox.participation.clock.availability import ask, most_candidates
from fedprox.participation.clock.deadline import deadline_seconds
from fedprox.participation.clock.profiles import Profile, ProfileDevices
from fedprox.participation.clock.timing import Devices, samples_in, seconds_for, steps_within
from fedprox.participation.sampling import draw_cohort
from fedprox.participation.traffic import Traffic
from fedprox.solvers import sgd
from fedprox.training.plan import plan_round
from test_limits import same_bits

DAY = 86400.0
PLAN = {"rounds": 4, "solver": {"epochs": 3, "batch_size": 4, "learning_rate": 0.1}, "devices": {"per_round": 3}}
EQUAL = {"model": "clock", "profile": "equal", "deadline": 1e9}
TIMES = ("seconds", "solve_seconds", "measure_seconds")


def one_device(speed=10.0, download=100.0, upload=50.0, latency=0.5):
    rates = [np.array([value]) for value in (speed, download, upload, latency)]
    return Devices(("device",), *rates)


def trace_lines(rows):
    given = {"samples_per_second": 10.0, "download_bytes_per_second": 1e3, "upload_bytes_per_second": 1e3}
    return "".join(json.dumps(given | row) + "\n" for row in rows)


@pytest.fixture
def trace_file(tmp_path):
    def write(rows):
        file = tmp_path / "trace.jsonl"
        file.write_text(trace_lines(rows))
        return str(file)

    return write


# timing


@pytest.mark.parametrize(
    ("limit", "steps"), [(10.0, 6), (100.0, 6), (9.99, 5), (8.4, 3), (6.0, 1), (5.99, 0), (4.0, 0), (0.0, 0)]
)
def test_the_steps_that_fit_worked_by_hand(limit, steps):
    # two messages of 0.5 s, 200 bytes down at 100/s, 100 bytes up at 50/s: 5 s; then batches of 10, 10 and 5, twice
    samples, most = np.array([25]), np.array([6])
    found = steps_within(np.array([limit]), most, samples, 10, one_device(), Traffic(200, 100))
    assert found.tolist() == [steps]


def test_the_time_of_a_reply_worked_by_hand():
    samples = np.array([25])
    for steps, seconds in ((0, 5.0), (1, 6.0), (3, 7.5), (4, 8.5), (6, 10.0)):
        assert seconds_for(np.array([steps]), samples, 10, one_device(), Traffic(200, 100)) == [seconds]
    assert seconds_for(np.array([2]), samples, 0, one_device(), Traffic(200, 100)) == [10.0]  # whole batches
    assert seconds_for(np.array([1]), samples, 10, one_device(), Traffic(200, 100, messages=4, passes=2)) == [12.0]


@given(
    limit=st.floats(0, 100),
    speed=st.floats(0.01, 1e6),
    samples=st.integers(1, 60),
    batch_size=st.integers(0, 20),
    epochs=st.integers(1, 4),
    latency=st.floats(0, 3),
)
def test_the_steps_that_fit_are_the_most_that_do(limit, speed, samples, batch_size, epochs, latency):
    devices, traffic, n = one_device(speed, latency=latency), Traffic(7, 3), np.array([samples])
    most = epochs * (1 if batch_size == 0 else -(-samples // batch_size))
    steps = int(steps_within(np.array([limit]), np.array([most]), n, batch_size, devices, traffic)[0])
    arrives = [float(seconds_for(np.array([s]), n, batch_size, devices, traffic)[0]) for s in range(most + 1)]
    assert steps == max((s for s in range(1, most + 1) if arrives[s] <= limit), default=0)


def test_samples_in_steps_counts_short_batches():
    walked = [len(batch) for _ in range(3) for batch in np.array_split(np.arange(25), [10, 20])]
    for steps in range(len(walked) + 1):
        assert samples_in(np.array([steps]), np.array([25]), 10) == sum(walked[:steps])


def test_deadlines():
    needed = np.array([5.0, 1.0, 4.0, 2.0, 3.0])
    found = [deadline_seconds(value, needed) for value in ("q0.2", "q.5", "q0.6", "q0.61", "q1", "q1.0", 7, 0.5)]
    assert found == [1.0, 3.0, 3.0, 4.0, 5.0, 5.0, 7.0, 0.5]
    assert deadline_seconds("q0.7", np.arange(1.0, 11.0)) == 7.0  # though 0.7 * 10 > 7 in floating point


# profiles and traces


def test_the_devices_of_a_profile_follow_its_numbers():
    source = ProfileDevices(read_profile("phones"), seed=3)
    everybody = np.arange(6000)
    found, again = source.at(everybody, round=1), source.at(everybody, round=2)
    kinds = np.array(found.kind)
    for kind in source.profile.classes:
        those = kinds == kind.name
        assert those.mean() == pytest.approx(kind.share, abs=4 * math.sqrt(kind.share / 6000))
        logs = np.log(found.samples_per_second[those])
        middle = math.log(source.profile.samples_per_second * kind.speed)
        spread = math.hypot(kind.spread, kind.round_spread)
        assert logs.mean() == pytest.approx(middle, abs=5 * spread / math.sqrt(those.sum()))
        assert logs.std() == pytest.approx(spread, rel=0.1)
        change = np.log(again.samples_per_second[those]) - logs
        assert change.std() == pytest.approx(math.sqrt(2) * kind.round_spread, rel=0.1)
        network = np.log(found.upload[those] / kind.upload_bytes_per_second)
        assert network.std() == pytest.approx(kind.network_spread, rel=0.1)
        np.testing.assert_allclose(
            found.download[those] / found.upload[those], found.download[those][0] / found.upload[those][0]
        )
        np.testing.assert_array_equal(again.upload[those], found.upload[those])


def test_a_device_is_the_same_whoever_else_is_asked():
    source = ProfileDevices(read_profile("phones"), seed=0)
    together, alone = source.at(np.array([9, 4, 2]), 5), source.at(np.array([4]), 5)
    assert alone.samples_per_second[0] == together.samples_per_second[1]
    assert alone.kind[0] == together.kind[1]
    assert ProfileDevices(source.profile, seed=1).at(np.array([4]), 5).upload[0] != alone.upload[0]


def test_day_and_night_by_hand():
    night = {"name": "n", "share": 1.0, "speed": 1.0, "from_hour": 22.0, "hours": 8.0}
    rates = {"download_bytes_per_second": 1.0, "upload_bytes_per_second": 1.0}
    source = ProfileDevices(Profile(samples_per_second=1.0, classes=[night | rates]), seed=0)
    left = [float(source.seconds_left(np.array([0]), hour * 3600.0)[0]) / 3600 for hour in (0, 5, 6, 12, 22, 24, 47)]
    np.testing.assert_allclose(left, [6, 1, 0, 0, 8, 6, 7])
    zoned = ProfileDevices(Profile(samples_per_second=1.0, classes=[night | rates | {"zones": 24.0}]), seed=0)
    away = zoned.seconds_left(np.arange(3000), 12 * 3600.0) == 0
    assert away.mean() == pytest.approx(2 / 3, abs=0.04)
    assert math.isinf(ProfileDevices(read_profile("equal"), 0).seconds_left(np.array([0]), 1e9)[0])


def test_a_profile_survives_being_written(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text(write_profile(read_profile("phones"), "two\nlines"))
    assert read_profile(str(file)) == read_profile("phones")
    assert file.read_text().startswith("# two\n# lines\norigin = ")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("share = 1.0", "share = 0.5"), "the `share` of all classes must sum to 1; got 0.5"),
        (("speed = 1.0", "speed = -1.0"), r"`classes\[1\].speed` must be a number > 0; got -1.0"),
        (
            ("speed = 1.0", "sped = 1.0"),
            r"unknown key `classes\[1\].sped`; did you mean `speed`\?|`classes\[1\].speed` must be given",
        ),
        (("samples_per_second = 500.0", ""), "`samples_per_second` must be given: a number > 0"),
        (("samples_per_second = 500.0", 'samples_per_second = "fast"'), "must be a number > 0; got 'fast'"),
        (("[[classes]]", "[other]"), "`classes` must be given: one or more|unknown key `other`"),
    ],
)
def test_a_bad_profile_gets_one_sentence(tmp_path, change, sentence):
    file = tmp_path / "bad.toml"
    text = write_profile(read_profile("equal"))
    assert change[0] in text
    file.write_text(text.replace(*change))
    with pytest.raises(fedprox.FedProxError, match=sentence) as error:
        read_profile(str(file))
    assert "\n" not in str(error.value)


def test_an_unknown_profile_is_refused_with_the_nearest_name():
    with pytest.raises(
        fedprox.FedProxError, match=r"one of equal, phones, phones-2020; got 'phone'; did you mean `phones`\?"
    ):
        read_profile("phone")
    with pytest.raises(
        fedprox.FedProxError, match=r"must be a file that exists or one of equal, phones, phones-2020; got './x.toml'"
    ):
        read_profile("./x.toml")


def test_a_trace_is_read_as_it_is(trace_file):
    rows = [{"available": [[10, 20], [30, 40]], "period_seconds": 50, "class": "a"}, {"samples_per_second": 3}]
    trace = read_trace(trace_file(rows), 2)
    found = trace.at(np.array([1, 0]), round=7)
    assert found.kind == ("device", "a")
    assert found.samples_per_second.tolist() == [3.0, 10.0]
    left = [trace.seconds_left(np.array([0]), now)[0] for now in (0, 10, 19, 20, 35)]
    assert left == [0, 10, 1, 0, 5]
    with pytest.warns(UserWarning, match="repeats"):
        assert [trace.seconds_left(np.array([0]), now)[0] for now in (65, 95)] == [5, 0]
    assert math.isinf(trace.seconds_left(np.array([1]), 0)[0])


def test_a_span_that_crosses_the_period_is_one(trace_file):
    trace = read_trace(trace_file([{"available": [[0, 5], [8, 10]], "period_seconds": 10}]), 1)
    assert [trace.seconds_left(np.array([0]), now)[0] for now in (9, 6)] == [6, 0]
    with pytest.warns(UserWarning, match="repeats"):
        assert trace.seconds_left(np.array([0]), 12)[0] == 3


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"samples_per_second": 0}, "line 2: `samples_per_second` must be a number > 0; got 0"),
        ({"samples_per_second": True}, "`samples_per_second` must be a number > 0; got True"),
        ({"latency_seconds": -1}, "`latency_seconds` must be a number >= 0; got -1"),
        ({"latency": 1}, "unknown field `latency`; did you mean `latency_seconds`"),
        ({"class": 3}, "`class` must be text; got 3"),
        ({"available": [[5, 4]]}, r"spans \[begin, end\] that rise from 0 to `period_seconds`, 86400; got \[5, 4\]"),
        ({"available": [[0, 10], [5, 20]]}, r"got \[5, 20\]"),
        ({"available": [[0, 100]], "period_seconds": 50}, r"`period_seconds`, 50; got \[0, 100\]"),
        ({"available": 3}, "`available` must be spans"),
        ({"available": [[0, "x"]]}, r"got \[0, 'x'\]"),
    ],
)
def test_a_bad_trace_names_line_field_and_value(trace_file, row, sentence):
    with pytest.raises(fedprox.FedProxError, match=sentence):
        read_trace(trace_file([{}, row]), 2)


def test_a_trace_that_is_missing_short_or_no_json(tmp_path, trace_file):
    with pytest.raises(fedprox.FedProxError, match=r"`systems.trace` must be a file that exists"):
        read_trace(tmp_path / "none.jsonl", 2)
    with pytest.raises(fedprox.FedProxError, match="one line for each of the 3 devices; got 2 lines"):
        read_trace(trace_file([{}, {}]), 3)
    (tmp_path / "bad.jsonl").write_text("[1]\n")
    with pytest.raises(fedprox.FedProxError, match=r"line 1: must be a JSON object; got '\[1\]'"):
        read_trace(tmp_path / "bad.jsonl", 1)
    (tmp_path / "bad.jsonl").write_text('{"samples_per_second": 1}\n')
    with pytest.raises(fedprox.FedProxError, match="`download_bytes_per_second` must be given"):
        read_trace(tmp_path / "bad.jsonl", 1)


# who can be asked


def only(available):
    """Return availability: these devices stay for an hour, the others are away."""
    return lambda devices, now: np.where(np.isin(devices, available), 3600.0, 0.0)


@pytest.mark.parametrize("scheme", ["uniform", "proportional"])
def test_where_everybody_is_available_the_list_is_that_of_the_scheme(scheme):
    offsets = np.concatenate([[0], np.cumsum(np.arange(1, 41))])
    for round in range(1, 20):
        asked = ask(scheme, 10, offsets, only(np.arange(40)), now=0.0, seed=5, round=round)
        plain = draw_cohort(scheme, 10, offsets, seed=5, round=round)
        for name in ("devices", "samples", "draws"):
            np.testing.assert_array_equal(getattr(asked.cohort, name), getattr(plain, name))
        assert (asked.away, asked.start) == (0, 0.0)


def test_uniform_sampling_is_uniform_over_the_available():
    available, offsets, rounds = np.arange(0, 30, 3), np.arange(31) * 2, 3000
    counts = np.zeros(30)
    for round in range(rounds):
        devices = ask("uniform", 4, offsets, only(available), now=0.0, seed=0, round=round).cohort.devices
        assert len(set(devices.tolist())) == 4
        counts[devices] += 1
    assert counts[np.setdiff1d(np.arange(30), available)].sum() == 0
    expected = rounds * 4 / 10
    chi2 = ((counts[available] - expected) ** 2 / (expected * 0.6)).sum() * 9 / 10
    assert chi2 < 27.9  # 0.1% of a chi-squared variable with 9 degrees of freedom


def test_proportional_sampling_is_proportional_over_the_available():
    samples, available, rounds = np.array([5, 1, 2, 30, 7]), np.array([0, 1, 4]), 3000
    offsets = np.concatenate([[0], np.cumsum(samples)])
    counts = np.zeros(5)
    for round in range(rounds):
        cohort = ask("proportional", 3, offsets, only(available), now=0.0, seed=0, round=round).cohort
        assert cohort.draws.sum() == 3
        np.add.at(counts, cohort.devices, cohort.draws)
    probability = np.where(np.isin(np.arange(5), available), samples, 0) / samples[available].sum()
    spread = np.sqrt(3 * rounds * probability * (1 - probability))
    assert (np.abs(counts - 3 * rounds * probability) <= 4 * spread).all()


def test_with_too_few_available_the_round_goes_on_with_those():
    asked = ask("uniform", 4, np.arange(31), only([7, 20]), now=0.0, seed=0, round=1)
    assert sorted(asked.cohort.devices.tolist()) == [7, 20]
    assert asked.away == 28


def test_with_nobody_available_the_server_waits():
    def afternoon(devices, now):
        return np.where(now >= 10_000, 100.0, 0.0) * (devices >= 0)

    asked = ask("uniform", 4, np.arange(31), afternoon, now=50.0, seed=0, round=1)
    assert asked.start == 50 + 12 * 900.0
    with pytest.raises(fedprox.FedProxError, match=r"no device was available for 604800 simulated seconds in round 3"):
        ask("uniform", 2, np.arange(6), only([]), now=0.0, seed=0, round=3)


def test_the_cost_of_asking_does_not_grow_with_the_population():
    looked_at = []

    def rare(devices, now):
        looked_at.extend(devices.tolist())
        return np.where(devices % 50 == 0, 1.0, 0.0)

    asked = ask("uniform", 10, np.arange(1_000_001), rare, now=0.0, seed=0, round=1)
    assert len(asked.cohort) == 10
    assert len(looked_at) == len(set(looked_at)) <= most_candidates(10)


# runs


@pytest.mark.parametrize("sampling", ["uniform", "proportional"])
@pytest.mark.parametrize(
    "method", [{"name": "fedavg"}, {"mu": 0.5}, {"name": "scaffold"}, {"name": "feddane", "mu": 0.1}]
)
def test_equal_devices_and_a_generous_deadline_are_no_stragglers_bit_for_bit(small_population, method, sampling):
    config = {**PLAN, "method": method, "devices": {"per_round": 3, "sampling": sampling, "failure": 0.3}}
    plain = fedprox.train(config, population=small_population)
    clock = fedprox.train({**config, "systems": EQUAL}, population=small_population)
    assert same_bits(plain.params, clock.params)
    for row, other in zip(plain.history, clock.history, strict=True):
        assert {name: value for name, value in row.items() if name not in TIMES}.items() <= other.items()
    for row, other in zip(plain.devices, clock.devices, strict=True):
        assert {name: value for name, value in row.items() if name not in TIMES}.items() <= other.items()


HURRIED = {"model": "clock", "deadline": "q0.5"}
SLEEPY = """
samples_per_second = 20.0
[[classes]]
name = "a"
share = 0.5
speed = 1.0
spread = 0.5
round_spread = 0.5
download_bytes_per_second = 1e4
upload_bytes_per_second = 1e3
latency_seconds = 0.1
from_hour = 0.0
hours = 0.005
zones = 0.01
[[classes]]
name = "b"
share = 0.5
speed = 0.2
download_bytes_per_second = 1e4
upload_bytes_per_second = 1e3
"""


@pytest.fixture
def sleepy(tmp_path):
    """A profile whose devices come and go within seconds, so that the time decides who takes part."""
    file = tmp_path / "sleepy.toml"
    file.write_text(SLEEPY)
    return {**HURRIED, "profile": str(file)}


def without_times(history):
    """Return the rows without what a real clock measures; a device's `seconds` are simulated and stay."""
    real = ("solve_seconds", "measure_seconds")
    return [
        {
            key: value
            for key, value in row.items()
            if key not in real and not (key == "seconds" and "mu" in row and "device" not in row)
        }
        for row in history
    ]


def test_one_worker_and_two_give_the_same_bits(small_population, sleepy):
    config = {**PLAN, "rounds": 8, "systems": sleepy}
    one, two = (fedprox.train({**config, "engine": {"workers": n}}, population=small_population) for n in (1, 2))
    assert same_bits(one.params, two.params)
    assert without_times(one.devices) == without_times(two.devices)
    assert without_times(one.history) == without_times(two.history)


def test_a_resumed_run_equals_an_uninterrupted_one(small_population, sleepy, tmp_path):
    config = {**PLAN, "rounds": 9, "systems": sleepy, "checkpoint": {"every": 2}}
    straight = fedprox.train(config, population=small_population, out=tmp_path / "straight")
    fedprox.train({**config, "rounds": 5}, population=small_population, out=tmp_path / "run")
    resumed = fedprox.train(config, population=small_population, out=tmp_path / "run", resume=True)
    assert same_bits(straight.params, resumed.params)
    assert without_times(straight.devices) == without_times(resumed.devices)
    assert without_times(straight.history) == without_times(resumed.history)
    assert any(row["away"] for row in straight.devices), "the profile is meant to be one whose devices go away"
    one, other = (fedprox.load_run(tmp_path / name) for name in ("straight", "run"))
    assert without_times(one.devices) == without_times(other.devices)


def test_another_profile_cannot_be_resumed_with(small_population, sleepy, tmp_path):
    config = {**PLAN, "systems": sleepy}
    fedprox.train(config, population=small_population, out=tmp_path / "run")
    with pytest.raises(fedprox.FedProxError, match=r"resume must not change `systems.profile`"):
        fedprox.train({**config, "systems": HURRIED}, population=small_population, out=tmp_path / "run", resume=True)


@pytest.mark.parametrize("scheme", ["uniform", "proportional"])
def test_fedavg_drops_who_is_late_and_fedprox_keeps_what_is_done(small_population, scheme):
    config = {**PLAN, "rounds": 6, "systems": HURRIED, "devices": {"per_round": 4, "sampling": scheme}}
    avg = fedprox.train({**config, "method": {"name": "fedavg"}}, population=small_population)
    prox = fedprox.train({**config, "method": {"mu": 0.0}}, population=small_population)
    drawn = ("device", "straggler", "budget", "epochs", "start", "deadline", "samples_per_second")
    for row, other in zip(avg.devices, prox.devices, strict=True):
        assert [row[name] for name in drawn] == [other[name] for name in drawn]  # paired by construction
        assert row["kept"] == [not late for late in row["straggler"]]
        assert other["kept"] == [budget > 0 for budget in other["budget"]]
        assert [step for step, kept in zip(other["steps"], other["kept"], strict=True) if kept] == [
            budget for budget in other["budget"] if budget
        ]
    assert any(any(row["straggler"]) for row in avg.devices)
    assert avg.history.column("simulated_seconds") == prox.history.column("simulated_seconds")


def by_hand(trace_file, deadline, method=None, **more):
    """Three devices of 10, 20 and 40 samples and 30 parameters' bytes; 10 samples a second, 0.24 s of transfer."""
    population = population_of([10, 20, 40], features=5, classes=5)
    config = {
        "rounds": 1,
        "solver": {"epochs": 1, "batch_size": 10, "learning_rate": 0.1},
        "devices": {"per_round": 3, **more.pop("devices", {})},
        "method": method or {"name": "fedprox", "mu": 0.0},
        "systems": {"model": "clock", "trace": trace_file(more.pop("rows", [{}, {}, {}])), "deadline": deadline},
        **more,
    }
    result = fedprox.train(config, population=population)
    row = result.devices[0]
    at = {device: position for position, device in enumerate(row["device"])}
    row = {name: [value[at[k]] for k in range(3)] if isinstance(value, list) else value for name, value in row.items()}
    return result, row


def test_a_round_worked_by_hand(trace_file):
    # 30 float32 are 120 bytes: 0.12 s down and 0.12 s up; then 1, 2 and 4 seconds of work
    result, row = by_hand(trace_file, 100.0)
    assert row["budget"] == row["steps"] == [1, 2, 4]
    np.testing.assert_allclose(row["seconds"], [1.24, 2.24, 4.24])
    assert result.history[-1]["simulated_seconds"] == pytest.approx(4.24)  # the last reply ends the round
    assert row["bytes"] == [240, 240, 240]
    assert result.history.column("bytes") == [0, 720]
    assert (result.summary["bytes"], result.summary["simulated_seconds"]) == (720, row["seconds"][2])


def test_a_round_with_a_late_device_lasts_until_the_deadline(trace_file):
    for method in ({"name": "fedavg"}, {"mu": 0.0}):
        result, row = by_hand(trace_file, 3.5, method)
        assert row["budget"] == [1, 2, 3]
        assert row["straggler"] == [False, False, True]
        keeps = method != {"name": "fedavg"}
        assert row["kept"] == [True, True, keeps]
        np.testing.assert_allclose(row["seconds"], [1.24, 2.24, 3.24 if keeps else 3.5])
        assert result.history[-1]["simulated_seconds"] == 3.5
        assert row["bytes"] == [240, 240, 240 if keeps else 120]


def test_who_cannot_do_a_single_step_takes_no_part(trace_file):
    rows = [{}, {}, {"upload_bytes_per_second": 10}]  # 12 s for the upload alone
    _, row = by_hand(trace_file, 5.0, rows=rows)
    assert row["budget"] == [1, 2, 0]
    assert row["epochs"] == [1.0, 1.0, 0.0]
    assert row["kept"] == [True, True, False]
    assert row["weight"] == [1 / 3, 2 / 3, 0]
    assert row["steps"] == [1, 2, 0]


def test_when_nobody_is_in_time_the_model_stays_and_time_goes_on(trace_file):
    result, row = by_hand(trace_file, 0.5, measure={"gamma": True}, rounds=3)
    assert row["kept"] == [False] * 3
    assert result.history.column("simulated_seconds") == [0.0, 0.5, 1.0, 1.5]
    assert len(set(result.history.column("train_loss"))) == 1
    assert result.history[-1]["bytes"] == 3 * 3 * 120


def test_a_device_that_goes_away_is_cut_off_before_the_deadline(trace_file):
    rows = [{}, {}, {"available": [[0, 2.5]], "period_seconds": 1000}]
    result, row = by_hand(trace_file, 100.0, rows=rows)
    assert row["budget"] == [1, 2, 2]
    assert row["straggler"] == [False, False, True]
    assert row["seconds"][2] == pytest.approx(2.24)
    assert result.history[-1]["simulated_seconds"] == 100.0
    again, _ = by_hand(trace_file, 100.0, rows=rows, rounds=2)
    assert sorted(again.devices[1]["device"]) == [0, 1]
    assert again.devices[1]["away"] == 1


def test_a_failed_device_makes_the_server_wait(trace_file):
    result, row = by_hand(trace_file, 100.0, devices={"failure": 0.4})
    assert sum(row["failed"]) == 1
    assert row["kept"] == [not failed for failed in row["failed"]]
    assert [second == 100.0 for second in row["seconds"]] == row["failed"]
    assert result.history[-1]["simulated_seconds"] == 100.0


def test_work_that_ends_early_ends_the_round_early(trace_file):
    solver = {"epochs": 50, "batch_size": 0, "learning_rate": 0.5, "gamma": 0.9}
    result, row = by_hand(trace_file, 1e6, solver=solver)
    assert any(steps < budget for steps, budget in zip(row["steps"], row["budget"], strict=True))
    expected = [0.24 + steps * n / 10 for steps, n in zip(row["steps"], (10, 20, 40), strict=True)]
    np.testing.assert_allclose(row["seconds"], expected)
    assert result.history[-1]["simulated_seconds"] == max(row["seconds"])


def test_a_quantile_lets_that_share_finish(trace_file):
    _, row = by_hand(trace_file, "q0.6")
    assert row["deadline"] == pytest.approx(2.24)
    assert row["straggler"] == [False, False, True]
    _, row = by_hand(trace_file, "q1")
    assert row["straggler"] == [False] * 3


def test_the_plan_of_a_round_needs_no_run(small_population, sleepy):
    config = Config.from_dict({**PLAN, "systems": sleepy})
    result = fedprox.train(config, population=small_population)
    method = methods.build(config.method)
    traffic = measure_traffic(method, result.params, sgd(), learning_rate=0.1)
    clock = build_clock(config, small_population, traffic)
    for before, row in zip(result.history, result.devices, strict=False):
        plan = plan_round(
            config, small_population, method, row["round"], clock=clock, now=before["simulated_seconds"]
        ).record()
        assert plan.items() <= row.items()


# bytes


@pytest.mark.parametrize(
    ("method", "down", "up", "messages", "passes"),
    [
        (methods.fedavg(), 1, 1, 2, 0),
        (methods.fedprox(), 1, 1, 2, 0),
        (methods.fedadam(), 1, 1, 2, 0),
        (methods.scaffold(), 2, 2, 2, 0),
        (methods.feddyn(), 1, 1, 2, 0),
        (methods.feddane(), 2, 2, 4, 2),
    ],
)
def test_what_a_method_sends(method, down, up, messages, passes):
    params = {"weight": np.zeros((3, 4), np.float32), "bias": np.zeros(3, np.float32)}
    found = measure_traffic(method, params, sgd(), learning_rate=0.1)
    assert found == Traffic(60 * down, 60 * up, messages, passes)


def test_fednova_sends_a_count_too():
    found = measure_traffic(methods.fednova(), np.zeros(5, np.float32), sgd(), learning_rate=0.1)
    assert found == Traffic(20, 28)


def test_bytes_without_a_clock(small_population):
    config = {**PLAN, "method": {"name": "fedavg"}, "devices": {"per_round": 4, "stragglers": 0.5}}
    result = fedprox.train(config, population=small_population)
    size = sum(leaf.nbytes for leaf in (result.params["weight"], result.params["bias"]))
    assert result.history.column("bytes") == [round * (4 * size + 2 * size) for round in range(5)]
    assert "simulated_seconds" not in result.history[-1]


# config


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"systems": {"model": "clok"}}, "`systems.model` must be one of stragglers, clock, module:object; got 'clok'"),
        (
            {"systems": {"model": "clock", "deadline": 0}},
            "`systems.deadline` must be a number of seconds > 0 or a quantile",
        ),
        ({"systems": {"model": "clock", "deadline": "q0"}}, "such as 'q0.8'; got 'q0'"),
        ({"systems": {"model": "clock", "deadline": "q1.2"}}, "got 'q1.2'"),
        ({"systems": {"model": "clock", "deadline": "0.8"}}, "got '0.8'"),
        (
            {"systems": {"model": "clock"}, "devices": {"stragglers": 0.5}},
            "`devices.stragglers` must be 0 with systems.model = 'clock', where the clock decides who is late; got 0.5",
        ),
        (
            {"systems": {"model": "clock", "profile": "equal", "trace": "x"}},
            "`systems.profile` must be left out with `systems.trace`, .* got 'equal'",
        ),
        ({"systems": {"deadline": 3.0}}, "`systems.deadline` must be left out unless systems.model = 'clock'; got 3.0"),
        ({"systems": {"trace": "x"}}, "`systems.trace` must be left out unless systems.model = 'clock'; got 'x'"),
    ],
)
def test_bad_settings(settings, sentence):
    with pytest.raises(fedprox.FedProxError, match=sentence):
        Config.from_dict(settings)


def test_a_config_on_the_clock_survives_its_toml(tmp_path):
    for deadline in ("q0.9", 30.0):
        config = Config.from_dict({"systems": {"model": "clock", "deadline": deadline}})
        (tmp_path / "c.toml").write_text(config.to_toml())
        assert Config.from_toml(tmp_path / "c.toml") == config


def test_a_second_draw_is_refused_and_nothing_is_written(small_population, tmp_path):
    config = {**PLAN, "method": {"name": "feddane", "second_draw": True}, "systems": EQUAL}
    with pytest.raises(fedprox.FedProxError, match=r"`method.second_draw` must be false with systems.model = 'clock'"):
        fedprox.train(config, population=small_population, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
