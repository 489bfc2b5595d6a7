"""Small records of finished runs: whole, or refused in one sentence."""

import json

import pytest

import fedprox
from fedprox.config import Config
from fedprox.core.errors import RunFolderError
from fedprox.experiments.compare import collect
from fedprox.experiments.scheduler import Ended, Job
from fedprox.experiments.sweep import Sweep
from fedprox.population.writer import save_population
from fedprox.runs.records import check_record, is_record_of, keep_record, use_record

CONFIG = Config.from_dict({"rounds": 2, "data": {"devices": 4}, "devices": {"per_round": 2}, "solver": {"epochs": 1}})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    fedprox.train(CONFIG, out=folder)
    return folder


@pytest.fixture
def record(run, tmp_path):
    keep_record(run, tmp_path / "record", devices=True)
    return tmp_path / "record"


def test_a_record_stands_for_its_run(run, record, tmp_path):
    assert is_record_of(record, CONFIG)
    use_record(record, tmp_path / "again")
    for name in ("config.toml", "metrics.jsonl", "devices.jsonl", "summary.json"):
        assert (tmp_path / "again" / name).read_bytes() == (run / name).read_bytes()


def test_one_without_digests_is_read(record):
    (record / "digests.json").unlink()
    assert is_record_of(record, CONFIG)


@pytest.mark.parametrize("name", ["config.toml", "metrics.jsonl", "devices.jsonl", "summary.json"])
def test_a_changed_digit_is_refused(record, name):
    text = (record / name).read_text()
    (record / name).write_text(text.replace("0.", "1.", 1))
    with pytest.raises(RunFolderError, match=rf"is a damaged record: {name} is not the file that was kept"):
        is_record_of(record, CONFIG)


@pytest.mark.parametrize("name", ["config.toml", "metrics.jsonl", "devices.jsonl"])
def test_a_missing_file_is_one_sentence(record, name):
    (record / name).unlink()
    with pytest.raises(RunFolderError, match=rf"{name} does not exist"):
        is_record_of(record, CONFIG)


@pytest.mark.parametrize("name", ["config.toml", "metrics.jsonl", "devices.jsonl", "digests.json"])
def test_a_folder_in_the_place_of_a_file_is_one_sentence(record, name):
    (record / name).unlink()
    (record / name).mkdir()
    with pytest.raises(RunFolderError, match=rf"{name} cannot be read: Is a directory"):
        is_record_of(record, CONFIG)


@pytest.mark.parametrize("damage", ["empty", "cut", "column"])
def test_a_comparison_and_a_sweep_refuse_a_run_whose_metrics_are_not_whole(record, damage):
    (record / "digests.json").unlink()
    lines = (record / "metrics.jsonl").read_text().splitlines()
    if damage == "column":
        rows = [json.loads(line) for line in lines]
        lines = [json.dumps({key: value for key, value in row.items() if key != "test_accuracy"}) for row in rows]
    kept = {"empty": [], "cut": lines[:-1], "column": lines}[damage]
    (record / "metrics.jsonl").write_text("".join(f"{line}\n" for line in kept))
    rule = "`test_accuracy` is missing" if damage == "column" else "must go to round 2, as summary.json says"
    job = Job("run", CONFIG, record)
    with pytest.raises(RunFolderError, match=rule):
        collect([Ended(job, json.loads((record / "summary.json").read_text()))])
    with pytest.raises(RunFolderError, match=rule):
        Sweep([record], [], 0).table()
    with pytest.raises(RunFolderError, match=rule):
        is_record_of(record, CONFIG)


def test_a_record_without_devices_names_the_data_without_its_place(run, tmp_path):
    path = tmp_path / "somewhere" / "letters"
    population = fedprox.Population.from_arrays([[0.0], [1.0]] * 6, [0, 1] * 6, [0] * 6 + [1] * 6)
    save_population(population, path)
    settings = {**CONFIG.to_dict(), "data": {"name": "population", "path": str(path)}}
    fedprox.train(settings, out=tmp_path / "run")
    keep_record(tmp_path / "run", tmp_path / "record")
    check_record(tmp_path / "record")
    assert Config.from_toml(tmp_path / "record" / "config.toml").data.path == "letters"
    assert str(tmp_path) not in (tmp_path / "record" / "config.toml").read_text()
    keep_record(tmp_path / "run", tmp_path / "whole", devices=True)
    assert Config.from_toml(tmp_path / "whole" / "config.toml").data.path == str(path)
