import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedprox.cli import app
from fedprox.config import Config
from fedprox.config.parts import builtin_names
from fedprox.config.recipes import load_settings
from fedprox.core.errors import ConfigError
from fedprox.experiments.compare import plan, variant
from fedprox.experiments.suite import Suite, read_suite, run_suite, suite_table
from fedprox.report.plot import suite_curves
from fedprox.runs.history import History


def test_the_benchmark_suite_has_the_methods_of_its_table(tmp_path):
    settings, suite = read_suite(load_settings("benchmark-suite"))
    assert suite.seeds == 5
    assert suite.stragglers == (0.0, 0.5, 0.9)
    jobs = plan(settings, [variant(text) for text in suite.methods], 1, tmp_path)
    docs = Path(__file__).parent.parent / "docs"
    page = (docs / "methods.md").read_text() + (docs / "which-method.md").read_text()
    names = {job.config.method.name for job in jobs}
    assert names <= set(builtin_names("methods"))
    assert all(re.search(rf"^\| `?{name}\b.*±", page, re.MULTILINE) for name in names)


@pytest.mark.usefixtures("runs_here")
def test_a_suite_is_one_paired_comparison_per_share(tmp_path):
    settings = {"rounds": 2, "data": {"devices": 6}, "devices": {"per_round": 4}, "solver": {"epochs": 2}}
    suite = Suite(methods=("fedavg", "scaffold"), stragglers=(0.0, 0.5), seeds=1)
    comparisons = run_suite(settings, suite, out=tmp_path / "suite")
    rows = suite_table(comparisons)
    assert [(row["stragglers"], row["method"]) for row in rows] == [
        (0.0, "fedavg"),
        (0.0, "scaffold"),
        (0.5, "fedavg"),
        (0.5, "scaffold"),
    ]
    chosen = {}
    for share in suite.stragglers:
        for name in suite.methods:
            folder = tmp_path / "suite" / f"stragglers-{share:g}" / name / "seed-0"
            assert Config.from_toml(folder / "config.toml").devices.stragglers == share
            records = [json.loads(line) for line in (folder / "devices.jsonl").read_text().splitlines()]
            chosen[share, name] = [(record["device"], record["straggler"]) for record in records]
    assert chosen[0.5, "fedavg"] == chosen[0.5, "scaffold"]
    devices = [[device for device, _ in chosen[share, "fedavg"]] for share in suite.stragglers]
    assert devices[0] == devices[1]


def test_a_variant_takes_over_only_the_settings_it_knows(tmp_path):
    settings = {"method": {"name": "fedprox", "mu": 1.0, "mu_step": 0.2}}
    prox, dyn = plan(settings, [variant("fedprox:mu=adaptive"), variant("feddyn:alpha=0.3")], 1, tmp_path)
    assert (prox.config.method.mu, prox.config.method.mu_step) == ("adaptive", 0.2)
    assert dyn.config.method.alpha == 0.3  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ({"seed": 2}, "unknown key `compare.seed`; did you mean `seeds`?"),
        ({"seeds": 0}, "`compare.seeds` must be an integer >= 1; got 0"),
        ({"methods": "fedavg"}, "`compare.methods` must be a list of methods; got 'fedavg'"),
        ({"stragglers": [0.1, "x"]}, "`compare.stragglers` must be a list of numbers in [0, 1]; got [0.1, 'x']"),
        ({"stragglers": [2.0]}, "`compare.stragglers` must be a list of numbers in [0, 1]; got [2.0]"),
        (3, "`compare` must be a table of settings; got 3"),
    ],
)
def test_a_bad_compare_section_is_refused(section, sentence):
    with pytest.raises(ConfigError) as error:
        read_suite({"compare": section})
    assert str(error.value) == sentence


def test_shares_are_given_once():
    with pytest.raises(ConfigError, match=r"`devices.stragglers` must be left out with `compare.stragglers`.*got 0.5"):
        read_suite({"compare": {"stragglers": [0.0]}, "devices": {"stragglers": 0.5}})


def test_a_share_that_is_there_twice_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(ConfigError, match=r"would share .*stragglers-0\.5"):
        run_suite({}, Suite(methods=("fedavg",), stragglers=(0.5, 0.5)), out=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_one_run_of_a_suite_is_refused_with_a_hint():
    result = CliRunner().invoke(app, ["run", "benchmark-suite"])
    assert result.exit_code == 2
    assert "use `fedprox compare`" in result.output


def test_the_picture_has_a_column_for_each_share():
    run = History([{"round": t, "train_loss": 1.0 / (t + 1), "test_accuracy": None} for t in range(3)])
    figure = suite_curves({0.0: {"a": [run], "b": [run, run]}, 0.9: {"a": [run], "b": [run, run]}}, "title")
    assert [axes.get_title() for axes in figure.axes] == ["0% stragglers", "90% stragglers"] * 2
    assert [len(axes.lines) for axes in figure.axes] == [2] * 4
    np.testing.assert_allclose(figure.axes[0].lines[0].get_ydata(), [1, 1 / 2, 1 / 3])
