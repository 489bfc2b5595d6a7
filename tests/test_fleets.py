"""Fleets: habits and their statistics, labels that are rarely there, imported files and what is refused."""

import json
import math

import numpy as np
import pytest
from typer.testing import CliRunner

import fedprox
from fedprox.cli import app
from fedprox.config import Config
from fedprox.core.errors import FedProxError
from fedprox.participation.clock import FleetDevices, ProfileDevices, build_source, read_profile, read_trace
from fedprox.participation.clock.habits import HabitDraws, Habits, probability, seconds_there
from fedprox.participation.fleets import import_fleet
from fedprox.population import Population

HOUR, DAY = 3600.0, 86400.0
RATES = {"download_bytes_per_second": 1e6, "upload_bytes_per_second": 1e6}
PHONES = {"model": "clock", "profile": "phones-2020"}


def draws(count, level, peak=0.0, begins=0.0):
    return HabitDraws(*(np.full(count, float(value)) for value in (level, peak, begins)))


# habits


def test_a_device_that_decides_in_every_slot_stays_to_the_end_of_its_slot_at_least():
    always, never = Habits(level=50.0), Habits(level=-50.0)
    one = np.arange(3)
    assert np.isinf(seconds_there(always, draws(3, 50), one, 7.0, seed=0)).all()
    assert seconds_there(never, draws(3, -50), one, 7.0, seed=0).tolist() == [0, 0, 0]
    half = Habits(level=0.0)
    left = seconds_there(half, draws(1000, 0, begins=600.0), np.arange(1000), 700.0, seed=0)
    assert set(left[left > 0] % 1800) == {1700.0}  # its slots begin at 600, 2400, ...


def test_the_state_is_the_same_whoever_looks_and_whenever():
    source, devices = ProfileDevices(read_profile("phones-2020"), seed=3), np.arange(50)
    together = source.seconds_left(devices, 9 * HOUR)
    alone = [ProfileDevices(source.profile, 3).seconds_left(devices[k : k + 1], 9 * HOUR)[0] for k in (0, 17, 49)]
    assert together[[0, 17, 49]].tolist() == alone
    there = np.flatnonzero(together)
    assert len(there)
    for device in there.tolist():  # who stays for s seconds is there until then, and gone after that
        left, one = together[device], np.array([device])
        assert source.seconds_left(one, 9 * HOUR + left - 1)[0] == pytest.approx(1, abs=1e-6)
        assert source.seconds_left(one, 9 * HOUR + left + 1)[0] == 0
    assert not np.array_equal(ProfileDevices(source.profile, 4).seconds_left(devices, 9 * HOUR), together)


def test_habits_have_the_stated_share_persistence_and_hours():
    habits = Habits(level=-1.0, habit=1.0, peak_hour=3.0, persistence=0.6)
    count = 20000
    own, devices = draws(count, -1.0, 3.0), np.arange(count)
    at = [seconds_there(habits, own, devices, slot * 1800.0 + 1, seed=1) > 0 for slot in range(48, 52)]
    decided = probability(habits, own, np.arange(0, 24, 0.5)[:, None])[:, 0]  # pi over the slots of a day
    kept = 0.4 * 0.6 ** np.arange(48)
    expected = [(kept * decided[(slot - np.arange(48)) % 48]).sum() for slot in range(4)]
    assert [each.mean() for each in at] == pytest.approx(expected, abs=4 * math.sqrt(0.25 / count))
    stays = (at[0] & at[1]).sum() / at[0].sum()
    assert stays == pytest.approx(0.6 + 0.4 * decided[1], abs=0.03)


def test_phones_2020_is_like_the_phones_that_it_was_derived_from():
    source, devices = ProfileDevices(read_profile("phones-2020"), seed=0), np.arange(1500)
    there = np.array([source.seconds_left(devices, slot * 1800.0) > 0 for slot in range(240)], float)
    assert there.mean() == pytest.approx(0.081, abs=0.012)  # 0.081 of the known half-hours of FLASH
    hours = np.arange(240) / 2 % 24
    night, afternoon = there[hours < 6].mean(), there[(hours >= 12) & (hours < 18)].mean()
    assert night > 1.4 * afternoon  # 0.110 and 0.063 there: nights are shared

    def correlation(lag):
        return np.corrcoef(there[:-lag].ravel(), there[lag:].ravel())[0, 1]

    assert correlation(1) == pytest.approx(0.74, abs=0.06)
    assert correlation(48) == pytest.approx(0.25, abs=0.06)
    assert correlation(24) < correlation(48) / 2
    assert 0.18 < (there.sum(0) == 0).mean() < 0.33  # 0.29 over five days, not all of which is known
    speeds = source.at(devices, 1).samples_per_second
    assert np.median(speeds) == pytest.approx(100, rel=0.15)
    assert source.profile.licence.startswith("BSD-2-Clause")


def fleet_file(folder, rows):
    file = folder / "fleet.jsonl"
    given = {"samples_per_second": 10.0, **RATES}
    file.write_text("".join(json.dumps(given | row) + "\n" for row in rows))
    return str(file)


def test_a_population_of_any_size_is_drawn_from_the_lines_of_a_fleet(tmp_path):
    file = fleet_file(tmp_path, [{"samples_per_second": speed, "class": f"{speed}"} for speed in (1.0, 2.0, 4.0)])
    fleet = FleetDevices(read_trace(file, None), seed=0)
    devices = np.arange(30_000)
    found = fleet.at(devices, 1)
    counts = np.array([found.kind.count(kind) for kind in ("1.0", "2.0", "4.0")])
    assert abs(counts - 10_000).max() < 4 * math.sqrt(30_000 * 2 / 9)
    assert fleet.at(np.array([999_999]), 7).kind == fleet.at(np.array([999_999, 3]), 1).kind[:1]
    assert FleetDevices(fleet.trace, seed=1).lines(devices[:50]).tolist() != fleet.lines(devices[:50]).tolist()


# labels that are rarely there


def labelled(devices=200):
    owner = np.repeat(np.arange(devices), 5)
    return Population.from_arrays(np.zeros((len(owner), 2), np.float32), owner % 2, owner)


def share_there(population, **systems):
    config = Config.from_dict({"systems": {**PHONES, **systems}, "devices": {"per_round": 5}})
    source = build_source(config, population)
    devices = np.arange(population.devices)
    there = np.mean([source.seconds_left(devices, slot * 1800.0) > 0 for slot in range(0, 96, 4)], axis=0)
    return there[0::2].mean(), there[1::2].mean()


def test_devices_with_rare_labels_are_there_less_often_by_the_knob():
    population = labelled(600)
    even, odd = share_there(population)
    assert 0.5 < odd / even < 2
    assert share_there(population, rare_labels=[1], rare_by=0.0) == (even, odd)
    same, rarer = share_there(population, rare_labels=[1])
    assert same == even
    assert share_there(population, rare_labels=[1], rare_by=4.0)[1] < rarer < odd / 3


@pytest.mark.parametrize(
    ("systems", "sentence"),
    [
        ({**PHONES, "rare_labels": [2]}, r"`systems.rare_labels` must be labels of the data, from 0 to 1; got 2"),
        ({"model": "clock", "rare_labels": [1]}, r"must be left out unless the profile has \[availability\].*'phones'"),
        ({"rare_labels": [1]}, r"`systems.rare_labels` must be left out unless systems.model = 'clock'; got \[1\]"),
        ({**PHONES, "rare_labels": [-1]}, r"`systems.rare_labels` must be a list of labels.*got -1"),
        ({**PHONES, "rare_by": -1.0}, r"`systems.rare_by` must be a number >= 0; got -1.0"),
    ],
)
def test_labels_that_cannot_be_rare_are_refused(systems, sentence):
    with pytest.raises(FedProxError, match=sentence):
        fedprox.train({"rounds": 1, "systems": systems, "devices": {"per_round": 2}}, population=labelled(6))


# runs


def test_a_run_on_phones_2020_is_the_same_when_resumed_and_with_more_workers(tmp_path):
    config = {
        "rounds": 4,
        "checkpoint": {"every": 1},
        "solver": {"epochs": 2},
        "devices": {"per_round": 4},
        "systems": PHONES,
    }
    whole = fedprox.train(config)
    fedprox.train(config | {"rounds": 2}, out=tmp_path / "run")
    resumed = fedprox.train(config | {"engine": {"workers": 1}}, out=tmp_path / "run", resume=True)
    for name in ("train_loss", "simulated_seconds"):
        assert whole.history.column(name) == resumed.history.column(name)
    assert whole.devices.column("device") == resumed.devices.column("device")


def test_a_trace_that_is_shorter_than_the_run_is_said_to_repeat(tmp_path):
    file = fleet_file(tmp_path, [{"available": [[0, 40]], "period_seconds": 50}])
    trace = read_trace(file, 1)
    assert trace.seconds_left(np.array([0]), 10.0)[0] == 30
    with pytest.warns(UserWarning, match="longer than its trace, 50 simulated seconds; availability repeats"):
        assert trace.seconds_left(np.array([0]), 60.0)[0] == 30


def test_devices_that_are_never_there_are_named(tmp_path):
    file = fleet_file(tmp_path, [{}, {"available": []}, {"available": []}])
    with pytest.warns(UserWarning, match=r"2 of 3 devices are never available and are never asked \(lines 2, 3\)"):
        assert read_trace(file, 3).seconds_left(np.array([1]), 5.0)[0] == 0
    with pytest.raises(FedProxError, match="at least one device must be available at some time"):
        read_trace(fleet_file(tmp_path, [{"available": []}]), 1)


# import


def test_flash_states_worked_by_hand(tmp_path):
    lines = [
        "2020-01-29 22:00:00\tscreen_lock",
        "2020-01-29 22:30:00\tWifi",
        "2020-01-29 23:00:00\tbattery_charged_on",
        "2020-01-29 23:10:00\t57.0%",
        "2020-01-30 01:00:00\tscreen_unlock",
        "2020-01-30 02:00:00\tscreen_lock",
        "2020-01-30 02:30:00\t4G",
    ]
    states = {"a": {"guid": "a", "model": "X", "messages": "\n".join(lines)}, "b": {"guid": "b", "messages": ""}}
    (tmp_path / "states.json").write_text(json.dumps(states))
    networks = {"n": {"down_u": 8000.0, "down_sigma": 1.0, "up_u": 800.0, "up_sigma": 1.0}}
    (tmp_path / "network.json").write_text(json.dumps(networks))
    fleet = import_fleet([tmp_path / "states.json", tmp_path / "network.json"], samples_per_second=7.0)
    first, second = fleet.lines
    assert first["available"] == [[23 * HOUR, 25 * HOUR], [26 * HOUR, 26.5 * HOUR]]
    assert (first["period_seconds"], second["available"]) == (2 * DAY, [])
    assert (first["download_bytes_per_second"], first["upload_bytes_per_second"]) == (1e6, 1e5)
    assert first["samples_per_second"] == 7.0
    assert any("1 of 2 devices are never available (lines 2)" in note for note in fleet.notes)
    assert any("covers 2 days and then repeats" in note for note in fleet.notes)
    kept = import_fleet([tmp_path / "states.json", tmp_path / "network.json"], drop_absent=True)
    assert len(kept.lines) == 1


def test_fedscale_files_are_joined_by_name_and_a_fleet_runs(tmp_path):
    capacity = {str(k): {"computation": 10.0 * (k + 1), "communication": 8000.0} for k in range(3)}
    behaviour = {str(k): {"active": [0], "inactive": [DAY], "finish_time": DAY, "duration": 1} for k in (2, 0, 1)}
    (tmp_path / "capacity.json").write_text(json.dumps(capacity))
    (tmp_path / "behaviour.json").write_text(json.dumps(behaviour))
    fleet = import_fleet([tmp_path / "capacity.json", tmp_path / "behaviour.json"])
    assert [line["samples_per_second"] for line in fleet.lines] == pytest.approx([100 / 3, 100 / 6, 100 / 9])
    out = tmp_path / "fleet.jsonl"
    out.write_text(fleet.text())
    result = fedprox.train({"rounds": 2, "systems": {"model": "clock", "profile": str(out)}})
    assert result.history[-1]["simulated_seconds"] > 0


def test_the_same_tables_as_csv_and_parquet_give_one_fleet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    columns = {
        "device": ["x", "y"],
        "ms_per_sample": [10.0, 20.0],
        "download_kbit_per_second": [80.0, 8.0],
        "upload_kbit_per_second": [8.0, 8.0],
        "latency_seconds": [0.0, 0.5],
        "class": ["new", "old"],
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "devices.parquet")
    rows = "\n".join(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))
    (tmp_path / "devices.csv").write_text(",".join(columns) + "\n" + rows + "\n")
    (tmp_path / "spans.csv").write_text("device,begin_seconds,end_seconds,period_seconds\nx,5,9,20\nx,0,5,20\ny,,,20\n")
    fleets = [import_fleet([tmp_path / name, tmp_path / "spans.csv"]) for name in ("devices.csv", "devices.parquet")]
    assert fleets[0].lines == fleets[1].lines
    assert fleets[0].lines[0] == {
        "samples_per_second": 100.0,
        "download_bytes_per_second": 10_000.0,
        "upload_bytes_per_second": 1000.0,
        "latency_seconds": 0.0,
        "available": [[0.0, 9.0]],
        "period_seconds": 20.0,
        "class": "new",
    }
    assert fleets[0].lines[1]["available"] == []


def test_half_hours_that_are_unknown_count_as_away(tmp_path):
    available = np.array([[1, 255], [1, 0], [0, 1], [255, 1]], np.uint8)
    np.savez(tmp_path / "there.npz", available=available)
    (tmp_path / "n.json").write_text(json.dumps({"n": {"down_u": 8.0, "up_u": 8.0}}))
    fleet = import_fleet([tmp_path / "there.npz", tmp_path / "n.json"])
    assert [line["available"] for line in fleet.lines] == [[[0.0, 3600.0]], [[3600.0, 7200.0]]]
    assert "25.0% of the half-hours are unknown and count as away" in fleet.notes[0]


GOOD = "device,samples_per_second,download_bytes_per_second,upload_bytes_per_second\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (GOOD + "a,-3,1,1\n", r"row 1: `samples_per_second` must be a number > 0; got -3"),
        (GOOD + "a,3,1,1\nb,,1,1\n", r"row 2: `samples_per_second` must be a number > 0; got None"),
        (GOOD + "a,3,1,1\na,3,1,1\n", r"row 2: `device` must have a different name in every row; 'a' appears twice"),
        (GOOD.replace("samples", "sample"), r"it must have a header line"),
        (
            GOOD.replace("samples", "sample") + "a,1,1,1\n",
            r"got 'sample_per_second'; did you mean `samples_per_second`",
        ),
        ("device,samples_per_second\na,1\n", r"device 0 has no download"),
        ("device,begin_seconds,end_seconds\na,9,5\n", r"must begin before it ends.*got 9 to 5"),
        ("device,begin_seconds,end_seconds\na,9,\n", r"must both be numbers; got 9.* and None"),
    ],
)
def test_a_bad_table_gets_a_sentence(tmp_path, text, sentence):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(FedProxError, match=sentence):
        import_fleet([tmp_path / "t.csv"])


def test_gaps_pickles_and_strange_files_get_a_sentence(tmp_path):
    (tmp_path / "a.csv").write_text(GOOD + "a,1,1,1\nb,1,1,1\n")
    (tmp_path / "s.csv").write_text("device,begin_seconds,end_seconds\na,0,5\n")
    with pytest.raises(FedProxError, match=r"s.csv must have every device.*1 of 2 are missing, such as 'b'"):
        import_fleet([tmp_path / "a.csv", tmp_path / "s.csv"])
    assert len(import_fleet([tmp_path / "a.csv", tmp_path / "s.csv"], at_random=True).lines) == 2
    (tmp_path / "p").write_bytes(b"\x80\x04K\x01.")
    with pytest.raises(FedProxError, match="it is a pickle"):
        import_fleet([tmp_path / "p"])
    (tmp_path / "j.json").write_text(json.dumps({"a": {"speed": 1}}))
    with pytest.raises(FedProxError, match=r"must have FLASH's `messages`.*its devices have speed"):
        import_fleet([tmp_path / "j.json"])
    (tmp_path / "j.json").write_text("{")
    with pytest.raises(FedProxError, match="is not a readable fleet file"):
        import_fleet([tmp_path / "j.json"])


def test_hours_beside_habits_are_refused(tmp_path):
    file = tmp_path / "p.toml"
    lines = ["samples_per_second = 1.0", "[availability]", "level = 0.0", "[[classes]]", 'name = "a"', "share = 1.0"]
    lines += ["speed = 1.0", "hours = 3.0", *(f"{key} = {value}" for key, value in RATES.items())]
    file.write_text("\n".join(lines))
    with pytest.raises(FedProxError, match=r"`hours` and `from_hour` of 'a' must be left out with \[availability\]"):
        read_profile(str(file))
    file.write_text("\n".join(lines).replace("level = 0.0", "level = 0.0\npersistence = 1.5"))
    with pytest.raises(FedProxError, match=r"`availability.persistence` must be a number in \[0, 1\); got 1.5"):
        read_profile(str(file))


# the command line


def test_fleets_are_imported_and_shown(tmp_path):
    (tmp_path / "a.csv").write_text(GOOD + "a,1,1,1\nb,2,1,1\n")
    runner, out = CliRunner(), tmp_path / "fleet.jsonl"
    done = runner.invoke(app, ["fleet", "import", str(tmp_path / "a.csv"), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "every device is always available" in done.output
    for name in (str(out), "phones-2020"):
        picture = tmp_path / "p.png"
        done = runner.invoke(app, ["fleet", "show", name, "--devices", "60", "--out", str(picture), "--json"])
        assert done.exit_code == 0, done.output
        assert picture.exists()
        assert json.loads(done.output)["classes"][-1]["devices"] == 60
    assert runner.invoke(app, ["fleet", "import", str(tmp_path / "a.csv"), "--out", str(out)]).exit_code == 2
