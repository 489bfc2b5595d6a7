"""Comparisons that choose mu by shorter runs first, and the small records that stand for finished runs."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from fedprox.cli import app
from fedprox.config import Config
from fedprox.config.recipes import load_settings
from fedprox.core.errors import ConfigError
from fedprox.experiments.compare import plan, variant
from fedprox.experiments.suite import read_suite
from fedprox.runs.folder import read_history
from fedprox.runs.records import is_record_of

pytestmark = pytest.mark.usefixtures("runs_here")

TOML = """
rounds = 4
[data]
devices = 6
[devices]
per_round = 6
[solver]
epochs = 2
[compare]
mus = [0.0, 5.0]
mu_rounds = 2
methods = ["fedavg", "fedprox:mu=best", "fedprox:mu=best,data.partition=iid"]
"""


def test_the_niid_benchmark_is_as_it_was_published(tmp_path):
    settings, suite = read_suite(load_settings("niid-bench"))
    assert suite.mus == (0.001, 0.01, 0.1, 1.0)
    methods = [text.replace("mu=best", "mu=1") for text in suite.methods]
    configs = [job.config for job in plan(settings, [variant(text) for text in methods], 1, tmp_path)]
    names = [(config.method.name, config.data.partition) for config in configs]
    assert names == [
        ("fedavg", "dirichlet"),
        ("fedprox", "dirichlet"),
        ("fedavg", "classes"),
        ("fedprox", "classes"),
        ("scaffold", "dirichlet"),
        ("fednova", "dirichlet"),
    ]
    for config in configs:
        assert (config.model.name, config.rounds, config.devices.per_round) == ("lenet", 50, 10)
        assert (config.data.devices, config.data.concentration, config.data.classes_per_device) == (10, 0.5, 2)
        solver = config.solver
        assert (solver.learning_rate, solver.momentum, solver.batch_size, solver.epochs) == (0.01, 0.9, 64, 10)


def test_mu_is_chosen_by_shorter_runs_and_records_stand_for_runs(tmp_path):
    file, out, records = tmp_path / "plan.toml", tmp_path / "out", tmp_path / "records"
    file.write_text(TOML)
    arguments = ["compare", str(file), "--out", str(out), "--records", str(records), "--json"]
    first = CliRunner().invoke(app, arguments)
    assert first.exit_code == 0, first.output
    rows = json.loads(first.stdout)["table"]
    losses = {
        mu: read_history(out / "choosing-mu" / f"fedprox-mu={mu}" / "seed-0")[-1]["train_loss"] for mu in ("0", "5")
    }
    best = min(losses, key=losses.get)
    assert [row["method"] for row in rows][:2] == ["fedavg", f"fedprox (mu={best})"]
    history = read_history(out / f"fedprox-mu={best}" / "seed-0")
    assert len(history) == 5
    assert rows[1]["best_test_accuracy"] == max(record["test_accuracy"] for record in history)
    kept = sorted(str(path.parent.relative_to(records)) for path in records.rglob("summary.json"))
    assert len(kept) == 7  # four shorter runs and three whole ones
    assert sum(path.stat().st_size for path in records.rglob("*") if path.is_file()) < 100_000
    before = {path: path.stat().st_mtime_ns for path in records.rglob("metrics.jsonl")}

    shutil.rmtree(out)  # a fresh clone has the records alone
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["table"] == rows
    assert not list(out.rglob("model.safetensors"))  # nothing was run
    assert set(before) == set(records.rglob("metrics.jsonl"))


def test_a_record_is_of_one_config(tmp_path):
    file, records = tmp_path / "plan.toml", tmp_path / "records"
    file.write_text(TOML.partition("[compare]")[0])
    arguments = ["compare", str(file), "--out", str(tmp_path / "out"), "--records", str(records), "-m", "fedavg"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    folder = records / "fedavg" / "seed-0"
    config = Config.from_toml(folder / "config.toml")
    assert is_record_of(folder, config)
    assert is_record_of(folder, Config.from_dict({**config.to_dict(), "engine": {"workers": 1}}))
    assert not is_record_of(folder, Config.from_dict({**config.to_dict(), "rounds": 5}))
    assert not is_record_of(folder, Config.from_dict({**config.to_dict(), "seed": 1}))
    assert not is_record_of(tmp_path / "nothing", config)


def test_bad_plans():
    with pytest.raises(ConfigError, match=r"`compare.mus` must be a list of numbers >= 0; got \[-1\]"):
        read_suite({"compare": {"mus": [-1]}})
    with pytest.raises(ConfigError, match=r"`compare.mu_rounds` must be an integer >= 1; got 0"):
        read_suite({"compare": {"mu_rounds": 0}})
    with pytest.raises(ConfigError, match="must be left out with a method written with `mu=best`"):
        read_suite({"compare": {"stragglers": [0.5], "methods": ["fedprox:mu=best"]}})
