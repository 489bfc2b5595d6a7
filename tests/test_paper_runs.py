"""The runs behind the figures: which there are, what they are called, and that shared ones are one."""

import json
import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from conftest import population_of
from fedprox.cli import app
from fedprox.config import Config
from fedprox.core.errors import ConfigError, DataError, RunFolderError
from fedprox.experiments.scheduler import Ended
from fedprox.paper.experiments import EXPERIMENTS, Curve
from fedprox.paper.figures import collect_notes
from fedprox.paper.make import list_names, make, overview
from fedprox.paper.measured_times import collect_published, measure_times
from fedprox.paper.protocol import DATASETS
from fedprox.paper.reduced import reduced_folder, take_subset, write_reduced
from fedprox.paper.remaining import Remaining
from fedprox.paper.results import Results
from fedprox.paper.runs import Setting, build_config, build_jobs, config_hash, expected_seconds, run_missing
from fedprox.paper.scales import SCALES, Subset, find_scale
from fedprox.paper.sources import collect_sources
from fedprox.population.folder import open_population
from fedprox.training.train import train

ROOT = Path(__file__).parents[1]


def setting_of(scale="desk", out="somewhere", seeds=None):
    return Setting(Path(out), find_scale(scale), seeds)


@lru_cache
def jobs_of_all(scale, seeds=None):
    curves = [curve for each in EXPERIMENTS.values() for curve in each.curves]
    return build_jobs(curves, setting_of(scale, seeds=seeds))


@lru_cache
def desk_overview():
    return overview(setting_of("desk"))


def test_the_name_of_a_run_stays():
    """Runs that exist are found again: a change of these values throws away everybody's runs."""
    assert config_hash(Config()) == "e4c1dc319527"
    assert config_hash(build_config(Curve("mnist", mu=1.0, stragglers=0.9), 3, setting_of())) == "ad9b7c719bc4"


def test_the_runs_on_record_have_the_names_of_their_configs():
    """A setting that a part adds to a config changes no name while it is at its default."""
    folders = list((ROOT / "docs" / "paper" / "records").iterdir())
    assert len(folders) == 52
    for folder in folders:
        assert folder.name.endswith("-" + config_hash(Config.of(folder / "config.toml")))
    wider = Config.from_dict({"model": {"name": "char_lstm", "hidden": 8}})
    assert config_hash(wider) != config_hash(Config.from_dict({"model": {"name": "char_lstm"}}))


def test_the_name_of_a_run_depends_on_what_is_computed_alone():
    curve = Curve("shakespeare", stragglers=0.5)
    config = build_config(curve, 0, setting_of())
    same = {**config.to_dict(), "engine": {"workers": 7}, "checkpoint": {"every": 3}}
    assert config_hash(Config.from_dict(same)) == config_hash(config)
    assert config_hash(build_config(curve, 0, setting_of(out="elsewhere"))) == config_hash(config)
    others = [
        build_config(curve, 1, setting_of()),
        build_config(curve, 0, setting_of("full")),
        build_config(replace(curve, stragglers=0.9), 0, setting_of()),
        build_config(replace(curve, method="fedavg", mu=None), 0, setting_of()),
        build_config(replace(curve, mu=0.001), 0, setting_of()),
    ]
    assert len({config_hash(each) for each in (config, *others)}) == 6


def test_long_rounds_are_saved_one_by_one():
    long, short = (build_config(Curve(name), 0, setting_of("night")) for name in ("shakespeare", "mnist"))
    assert (long.checkpoint.every, short.checkpoint.every) == (1, 10)


def test_fedavg_without_stragglers_is_the_run_of_fedprox_with_mu_0():
    fedavg, fedprox = Curve("synthetic-1-1", "fedavg", None), Curve("synthetic-1-1")
    assert len(build_jobs([fedavg, fedprox], setting_of())) == 5
    assert len(build_jobs([replace(fedavg, stragglers=0.5), replace(fedprox, stragglers=0.5)], setting_of())) == 10
    settings = {"rounds": 2, "method": {"name": "fedavg"}}
    histories = [train(each).history for each in (settings, {"rounds": 2})]
    assert histories[0].column("train_loss") == histories[1].column("train_loss")


@pytest.mark.parametrize(("one", "other"), [("figure2", "figure6"), ("figure1", "figure7"), ("figure9", "figure10")])
def test_figures_of_the_same_experiment_share_all_runs(one, other):
    assert set(EXPERIMENTS[one].curves) == set(EXPERIMENTS[other].curves)
    assert set(EXPERIMENTS["figure3"].curves) < set(EXPERIMENTS["figure11"].curves)


def test_the_protocol_is_the_papers():
    setting = setting_of("full")
    found = {
        name: build_config(Curve(name, mu=each.best_mu), 0, setting)
        for name, each in DATASETS.items()
        if name in ("synthetic-1-1", "mnist", "femnist", "shakespeare", "sent140")
    }
    assert [each.rounds for each in found.values()] == [200, 100, 200, 40, 800]
    assert [each.method.mu for each in found.values()] == [1, 1, 1, 0.001, 0.01]
    assert [each.solver.learning_rate for each in found.values()] == [0.01, 0.03, 0.003, 0.8, 0.3]
    assert {(each.devices.per_round, each.solver.batch_size, each.solver.epochs) for each in found.values()} == {
        (10, 10, 20)
    }
    assert all(each.measure.every == 1 and each.measure.dissimilarity for each in found.values())


def test_the_adaptive_rule_starts_where_it_hurts():
    starts = {
        name: build_config(Curve(name, mu="adaptive"), 0, setting_of()).method.mu_initial
        for name in ("synthetic-iid", "synthetic-0-0", "synthetic-1-1")
    }
    assert starts == {"synthetic-iid": 1.0, "synthetic-0-0": 0.0, "synthetic-1-1": 0.0}


def test_every_run_of_every_scale_is_a_config():
    counts = {name: len(jobs_of_all(name)) for name in SCALES}
    assert counts == {"smoke": 158, "desk": 447, "night": 447, "full": 525}
    assert len(jobs_of_all("desk", seeds=1)) == 105


def test_desk_is_expected_to_take_less_than_ninety_minutes_on_two_cores():
    assert sum(expected_seconds(job, find_scale("desk")) for job in jobs_of_all("desk")) / 2 < 90 * 60
    assert [row["name"] for row in desk_overview()] == [*list_names("all"), "all"]
    assert desk_overview()[-1]["left"] == 447


def test_the_list_tells_measured_times_or_that_there_are_none(tmp_path):
    rows = {row["name"]: row for row in desk_overview()}
    published = json.loads((ROOT / "docs" / "paper" / "figure3.json").read_text())["runs"]
    assert rows["figure3"]["measured_runs"] == rows["figure3"]["runs"] == len(published)
    assert rows["figure3"]["measured_seconds"] == pytest.approx(sum(run["seconds"] for run in published))
    smoke = Setting(tmp_path, find_scale("smoke"))
    jobs = build_jobs(EXPERIMENTS["figure3"].curves, smoke)
    assert measure_times(jobs, smoke) == (0, 0)
    train({"rounds": 2, "data": {"devices": 3}, "devices": {"per_round": 2}}, out=tmp_path / "run")
    jobs[0].out.parent.mkdir()
    summary = {**json.loads((tmp_path / "run" / "summary.json").read_text()), "seconds": 2.5}
    (tmp_path / "run" / "summary.json").write_text(json.dumps({**summary, "rounds": jobs[0].config.rounds}))
    (tmp_path / "run").rename(jobs[0].out)
    assert measure_times(jobs, smoke) == (2.5, 1)
    shown = CliRunner().invoke(
        app, ["paper", "list", "--scale", "smoke", "--workers", "1", "--out", str(tmp_path)], env={"COLUMNS": "200"}
    )
    assert re.search(r"^figure3 .* 2 s for 1 of the runs$", shown.stdout, re.MULTILINE)
    assert re.search(r"^figure1 .* not measured$", shown.stdout, re.MULTILINE)


def test_the_published_times_are_those_behind_the_figures():
    shipped = json.loads((ROOT / "src" / "fedprox" / "paper" / "published_seconds.json").read_text())
    assert shipped == collect_published(ROOT / "docs" / "paper", shipped["seconds"])


@pytest.mark.parametrize(("name", "is_said"), [("figure1", True), ("figure7", True), ("figure2", False)])
def test_figures_say_why_fedavg_is_not_seen_without_stragglers(name, is_said, tmp_path):
    sources = collect_sources([EXPERIMENTS[name]], Results(Setting(tmp_path, find_scale("smoke"))), DATASETS)
    notes = " ".join(collect_notes(EXPERIMENTS[name], {}, sources))
    assert ("one curve stands for both" in notes) == is_said


def test_every_reduction_is_said():
    desk = find_scale("desk")
    assert desk.of("mnist").sentence("MNIST") == ""
    sentence = desk.of("sent140").sentence("Sent140")
    assert sentence == "Sent140: 10 rounds, 40 devices, 15% of the samples of each (at least 8)."


def test_a_part_of_a_population_keeps_devices_unequal():
    whole = population_of([10, 40, 200, 30, 60, 80], test=12)
    part = take_subset(whole, Subset(devices=4, share=0.25, least=5))
    names = [whole.name(device) for device in range(6)]
    for device in range(part.devices):
        original = names.index(part.name(device))
        size = whole.train.size(original)
        assert part.train.size(device) == min(size, max(5, size // 4))
        assert part.test.size(device) == 3
        rows = {row.tobytes() for row in whole.train.of(original)[0]}
        assert all(row.tobytes() in rows for row in part.train.of(device)[0])
    assert part.classes == whole.classes
    again = take_subset(whole, Subset(devices=4, share=0.25, least=5))
    assert np.array_equal(part.train.x, again.train.x)
    other = take_subset(whole, Subset(devices=4, share=0.25, least=5), seed=1)
    assert part.train.x.shape != other.train.x.shape or not np.array_equal(part.train.x, other.train.x)


def test_a_smaller_population_is_written_once(tmp_path):
    folder = reduced_folder(tmp_path, "mnist", "smoke")
    write_reduced("mnist", find_scale("smoke").of("mnist"), folder)
    before = (folder / "manifest.json").stat().st_mtime_ns
    write_reduced("mnist", find_scale("smoke").of("mnist"), folder)
    assert (folder / "manifest.json").stat().st_mtime_ns == before
    assert open_population(folder).devices == 12
    with pytest.raises(DataError, match=r"smoke must hold 'femnist: 2 rounds, synthetic data in its place.'"):
        write_reduced("femnist", find_scale("smoke").of("femnist"), folder)


def test_what_is_left_follows_the_pace():
    now = [0.0]
    left = Remaining({Path("a"): 10.0, Path("b"): 30.0}, workers=2, clock=lambda: now[0])
    assert left.seconds() == 20  # as expected, on two cores
    now[0] = 10.0
    left.reached(Path("b"), 0.5)  # 15 of 40 expected seconds
    assert (left.finished, left.total) == (0, 2)
    assert left.seconds() == pytest.approx(10 * 25 / 15)


def test_bad_names_are_refused():
    with pytest.raises(ConfigError, match=r"NAME must be list, all or one of table1.*did you mean `figure1`"):
        list_names("figur1")
    with pytest.raises(
        ConfigError, match="`--scale` must be one of smoke, desk, night, full; got 'dusk'; did you mean `desk`"
    ):
        find_scale("dusk")


def test_data_that_are_missing_are_said_to_be_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPROX_DATA", str(tmp_path / "none"))
    with pytest.raises(DataError, match="run `fedprox data prepare mnist`"):
        make(["figure8"], setting_of(out=str(tmp_path / "out")))
    assert not (tmp_path / "out" / "runs").exists()


def test_the_record_of_a_finished_run_stands_for_it(tmp_path):
    setting = Setting(tmp_path / "here", find_scale("smoke"), seeds=1, records=tmp_path / "records")
    curves = [Curve("synthetic-1-1", mu=1.0)]
    assert run_missing(curves, setting, workers=1) == 1
    [record] = setting.records.iterdir()
    assert {file.name for file in record.iterdir()} == {
        "config.toml",
        "digests.json",
        "metrics.jsonl",
        "summary.json",
    }
    elsewhere = Setting(tmp_path / "elsewhere", find_scale("smoke"), seeds=1, records=setting.records)
    assert run_missing(curves, elsewhere, workers=1) == 0
    [history] = Results(elsewhere).histories(curves[0])
    assert history.column("round") == [0, 1, 2]
    (record / "summary.json").unlink()
    assert Results(Setting(tmp_path / "third", setting.scale, 1, setting.records)).runs(curves[0]) == []


def test_only_runs_the_data_sets_it_names(tmp_path):
    setting = Setting(tmp_path, find_scale("smoke"), seeds=1)
    made = make(["figure3"], setting, workers=1, only=["synthetic-iid"])
    assert (made.runs, made.files) == (3, [])
    assert {path.name.rpartition("-")[0] for path in (tmp_path / "runs").iterdir()} == {"synthetic-iid"}
    with pytest.raises(ConfigError, match=r"must be data sets of .*; got 'shakspeare'; did you mean `shakespeare`"):
        make(["figure3"], setting, only=["shakspeare"])


def test_synthetic_data_sets_are_replaced_together(tmp_path):
    setting = Setting(tmp_path, find_scale("smoke"), seeds=1)
    with pytest.raises(ConfigError, match=r"must have all of synthetic-iid, .* or none; got synthetic-iid"):
        make(["figure3"], setting, only=["synthetic-iid"], figures=tmp_path)


def test_a_damaged_record_beside_a_figure_is_one_sentence(tmp_path):
    setting = Setting(tmp_path / "out", find_scale("smoke"), seeds=1)
    for name, content in (("figure8.json", '{"datasets": {"mnist": {"scale": 1}}}'), ("figure8.csv", "row\n1,2,3\n")):
        (tmp_path / name).write_text(content)
        with pytest.raises(DataError, match=f"{name} is not the (record|table) of a figure: "):
            make(["figure8"], setting, only=["mnist"], figures=tmp_path, only_draw=True)
        (tmp_path / name).unlink()


def test_night_has_all_devices_and_measures_a_sample():
    scale = find_scale("night")
    config = build_config(Curve("shakespeare", mu=0.001, stragglers=0.9), 0, Setting(Path("x"), scale))
    assert (config.rounds, config.solver.epochs, config.measure.devices) == (40, 20, 36)
    assert scale.of("shakespeare").subset == Subset(143, 0.1, 20)
    assert "measured on 36 devices" in scale.of("shakespeare").sentence("Shakespeare")
    assert scale.of("sent140").rounds >= 100
    assert scale.of("sent140").subset is None


def test_a_folder_that_no_run_can_be_written_to_is_bad_input(tmp_path, monkeypatch):
    sentence = "run folder x cannot be written: Read-only file system"

    def refused(jobs, **_):
        return [Ended(job, error=sentence, kind="RunFolderError") for job in jobs]

    monkeypatch.setattr("fedprox.paper.runs.run_jobs", refused)
    setting = Setting(tmp_path, find_scale("smoke"))
    with pytest.raises(RunFolderError, match=f"^{sentence}$") as caught:
        run_missing([EXPERIMENTS["figure3"].curves[0]], setting)
    assert caught.value.exit_code == 2
