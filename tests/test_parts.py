"""Parts by name: built-in ones, those of a module, and those of installed packages."""

import importlib
import io
import json
import os
import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import fedprox
from fedprox import methods
from fedprox.config import Config, with_overrides
from fedprox.config.builtin_parts import BUILTIN
from fedprox.config.parts import builtin_names, find_part
from fedprox.core.errors import ConfigError, RunError
from fedprox.methods import Method
from fedprox.population import Population
from fedprox.report.terminal import comparison_table

HALF = '''
from dataclasses import dataclass

import jax

from fedprox.methods import Method


@dataclass(frozen=True)
class Half(Method):
    """Moves only part of the way to the mean."""

    name: str = "half"
    proximal: bool = True
    strength: float = 0.5

    def merge(self, server, params, averaged, summed):
        return jax.tree.map(lambda w, a: w + self.strength * (a - w), params, averaged), server
'''
SMALL = ("-s", "rounds=2", "-s", "data.devices=6", "-s", "devices.per_round=3", "-s", "solver.epochs=1")


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module that Python finds, and return its name."""

    def write(text, name="own_parts"):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        importlib.invalidate_caches()
        monkeypatch.delitem(sys.modules, name, raising=False)
        return name

    monkeypatch.syspath_prepend(tmp_path)
    yield write
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]


def command(*arguments, cwd):
    line = [sys.executable, "-P", "-m", "fedprox", *map(str, arguments)]
    return subprocess.run(line, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("group", BUILTIN)
def test_every_line_of_the_registry_leads_somewhere(group):
    for name in builtin_names(group):
        assert find_part(group, name, group) is not None


def test_a_method_of_ones_own_runs_in_every_command(in_process, request, tmp_path):
    (tmp_path / "mine.py").write_text(HALF)
    assert len(HALF.strip().splitlines()) <= 40
    run = command("run", "synthetic-1-1", *SMALL, "-s", "method.name=mine:Half", "-s", "method.strength=0.25",
                  "--out", "one", cwd=tmp_path)  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert 'name = "mine:Half"\nmu = 1.0' in (tmp_path / "one" / "config.toml").read_text()
    assert "strength = 0.25" in (tmp_path / "one" / "config.toml").read_text()
    compare = in_process("compare", "synthetic-1-1", *SMALL, "-m", "fedavg", "-m", "mine:Half:strength=0.5",
                      "--out", "two", "--json", cwd=tmp_path)  # fmt: skip
    assert compare.returncode == 0, compare.stderr
    table = json.loads(compare.stdout)["table"]
    assert [row["method"] for row in table] == ["fedavg", "mine:Half (strength=0.5)"]
    assert table[0]["train_loss"] != table[1]["train_loss"]
    request.getfixturevalue("runs_here")  # processes that find the method were started above
    sweep = in_process("sweep", "synthetic-1-1", *SMALL, "-s", "method.name=mine:Half", "-g", "method.strength=0.1,1",
                    "--out", "three", "--json", cwd=tmp_path)  # fmt: skip
    assert sweep.returncode == 0, sweep.stderr
    assert len(json.loads(sweep.stdout)["table"]) == 2
    tune = in_process("tune", "synthetic-1-1", *SMALL, "-s", "method.name=mine:Half", "-s", "method.strength=0.25",
                   "--rates", "0.01", "--mus", "1,200", "--out", "four", cwd=tmp_path)  # fmt: skip
    assert tune.returncode == 0, tune.stderr
    assert "On mine:Half with this rate: method.mu = 1" in tune.stdout
    assert "strength = 0.25" in (tmp_path / "four" / "tuned.toml").read_text()
    evaluate = in_process("evaluate", "one", "--json", cwd=tmp_path)
    assert evaluate.returncode == 0, evaluate.stderr
    last = json.loads((tmp_path / "one" / "metrics.jsonl").read_text().splitlines()[-1])
    assert json.loads(evaluate.stdout)["test_accuracy"] == pytest.approx(last["test_accuracy"])
    np.save(tmp_path / "x.npy", np.zeros((2, 60), np.float32))
    predict = in_process("predict", "one", "--data", "x.npy", cwd=tmp_path)
    assert len(predict.stdout.split()) == 2, predict.stderr
    theory = in_process("theory", "one", cwd=tmp_path)
    assert theory.returncode == 2
    assert "the theorems do not cover this run: `method.name` must be 'fedprox'; it is 'mine:Half'" in theory.stderr
    report = in_process("report", "one", "three", "--out", "report.html", cwd=tmp_path)
    assert report.returncode == 0, report.stderr
    assert "mine:Half" in (tmp_path / "report.html").read_text()


@pytest.mark.usefixtures("started_anew")
def test_an_installed_module_wins_over_a_file_in_the_folder(tmp_path):
    (tmp_path / "json.py").write_text("raise SystemExit('the file was taken')")
    (tmp_path / "mine.py").write_text(HALF)
    run = command("run", "synthetic-1-1", *SMALL, "-s", "method.name=mine:Half", "--out", "one", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    refused = command("run", "synthetic-1-1", *SMALL, "-s", "method.name=json:Half", "--out", "two", cwd=tmp_path)
    assert refused.returncode == 2
    assert "`method.name` must name an object of 'json', which has no 'Half'" in refused.stderr


@pytest.mark.usefixtures("started_anew")
def test_the_folder_is_searched_only_where_a_config_asks_for_it(tmp_path):
    (tmp_path / "sitecustomize_not.py").write_text("")
    (tmp_path / "optax.py").write_text("raise SystemExit('the file was taken')")
    run = command("run", "synthetic-1-1", *SMALL, "--out", "one", cwd=tmp_path)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("method.name=nowhere:Half", "`method.name` must name a module that can be imported (ModuleNotFoundError"),
        ("method.name=mine.py:Half", "got 'mine.py:Half'; did you mean `mine:Half`?"),
        ("method.name=./mine.py:Half", "got './mine.py:Half'; did you mean `mine:Half`?"),
        ("method.name=mine.py", "got 'mine.py'; an object of a file is given as `mine:OBJECT`"),
        ("method.name=mine.Half", "got 'mine.Half'; did you mean `mine:Half`?"),
        ("method.name=broken:Half", "`method.name` must name a module that can be imported (SyntaxError"),
        ("method.name=mine:Haf", "which has no 'Haf'; got 'mine:Haf'; did you mean `Half`?"),
        ("method.name=mine:dataclass", "`method.name` must name a Method, or a callable that returns one; got 'mine"),
        ("method.strenght=0.5", "unknown key `method.strenght`; did you mean `method.strength`?"),
        ("method.strength=x", "`method.strength` must be a number; got 'x'"),
        ("method.alpha=0.5", "`method.alpha` must be left out with method.name = 'mine:Half'"),
    ],
)
def test_bad_parts_are_refused_in_one_sentence(tmp_path, setting, sentence):
    (tmp_path / "mine.py").write_text(HALF)
    (tmp_path / "broken.py").write_text("def")
    settings = ["-s", "method.name=mine:Half", "-s", setting, "--out", "run"]
    done = command("run", "synthetic-1-1", *SMALL, *settings, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_part_that_raises_ends_the_run_with_its_traceback_and_the_folder_can_be_resumed(tmp_path):
    raising = (
        HALF
        + """

import pathlib


@dataclass(frozen=True)
class Weak(Half):
    name: str = "weak"

    def merge(self, server, params, averaged, summed):
        if not pathlib.Path("mended").exists():
            raise ZeroDivisionError("in my own method")
        return super().merge(server, params, averaged, summed)
"""
    )
    (tmp_path / "mine.py").write_text(raising)
    settings = (*SMALL, "-s", "method.name=mine:Weak", "--out", "run")
    done = command("run", "synthetic-1-1", *settings, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    assert 'raise ZeroDivisionError("in my own method")' in done.stderr
    line = raising.splitlines().index('            raise ZeroDivisionError("in my own method")') + 1
    problem = f"ZeroDivisionError: in my own method (mine.py, line {line})"
    assert done.stderr.endswith(f"fedprox: Weak.merge failed with {problem}\n")
    (tmp_path / "mended").touch()
    done = command("run", "synthetic-1-1", *settings, "--resume", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


class Breaking:
    """Parts that raise in the second round until they are mended."""

    is_broken = True
    calls = 0

    @classmethod
    def check(cls, is_second):
        if cls.is_broken and is_second:
            raise ZeroDivisionError("in my own part")


def breaking_sampler(view):
    Breaking.check(view.round == 2)
    return [0, 1]


def breaking_rule(history):
    Breaking.check(history[-1]["round"] == 2)
    return False


def breaking_callback(progress):
    Breaking.check(progress.round == 2)


def breaking_metric(labels, predictions):
    Breaking.calls += 1
    Breaking.check(Breaking.calls == 3)  # round 0 is measured too
    return 0.0


def breaking_solver(params, x, y, subproblem, budget, key):
    Breaking.calls += 1
    Breaking.check(Breaking.calls > 2)  # two devices in the first round
    return params, budget


@pytest.mark.parametrize(
    "given",
    [
        {"sampler": breaking_sampler},
        {"stopping_rule": breaking_rule},
        {"callbacks": [breaking_callback]},
        {"metrics": {"own": breaking_metric}},
        {"solver": fedprox.solvers.opaque(breaking_solver)},
    ],
    ids=lambda given: next(iter(given)),
)
def test_a_run_continues_after_a_part_that_raised_is_mended(tmp_path, small_population, given, monkeypatch):
    monkeypatch.setattr(Breaking, "calls", 0, raising=False)
    config = {**SHORT, "engine": {"workers": 2}, "checkpoint": {"every": 1}}
    with pytest.raises((ZeroDivisionError, RunError), match="in my own part") as found:
        fedprox.train(config, population=small_population, out=tmp_path / "run", **given)
    assert isinstance(found.value.__cause__ or found.value, ZeroDivisionError)
    monkeypatch.setattr(Breaking, "is_broken", False)
    again = fedprox.train(config, population=small_population, out=tmp_path / "run", resume=True, **given)
    whole = fedprox.train(config, population=small_population, **given)
    assert [row["round"] for row in again.history] == [0, 1, 2, 3]
    assert again.history.column("train_loss") == whole.history.column("train_loss")


def entry_point(folder, package, *lines):
    about = folder / f"{package}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")


def test_an_installed_entry_point_is_a_name(module, tmp_path, monkeypatch):
    name = module(HALF)
    entry_point(tmp_path / "site", "half", "[fedprox.methods]", f"half = {name}:Half")
    monkeypatch.syspath_prepend(tmp_path / "site")
    config = Config.from_dict({"method": {"name": "half", "strength": 0.1}})
    assert fedprox.methods.build(config.method).strength == 0.1  # type: ignore[attr-defined]
    assert Config.from_dict(config.to_dict()) == config
    with pytest.raises(ConfigError, match=r"`method.name` must be one of .*, half, module:object; got 'hal'; did you"):
        Config.from_dict({"method": {"name": "hal"}})
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{tmp_path / 'site'}:{os.environ.get('PYTHONPATH', '')}")
    line = ["compare", "synthetic-1-1", *SMALL, "-m", "half:strength=0.5", "--out", "two", "--json"]
    compared = command(*line, cwd=tmp_path)
    assert compared.returncode == 0, compared.stderr
    assert [row["method"] for row in json.loads(compared.stdout)["table"]] == ["half (strength=0.5)"]


def test_configs_and_help_start_without_jax():
    code = "import sys, fedprox.config, fedprox.cli; sys.exit(any(name in sys.modules for name in {names}))"
    names = ("jax", "scipy", "matplotlib", "ray", "torch")
    done = subprocess.run([sys.executable, "-c", code.format(names=names)], check=False)
    assert done.returncode == 0


def test_two_entry_points_of_one_name_are_refused(module, tmp_path, monkeypatch):
    name = module(HALF)
    entry_point(tmp_path / "site", "half", "[fedprox.methods]", f"twice = {name}:Half")
    entry_point(tmp_path / "site", "other", "[fedprox.methods]", "twice = other:Half")
    monkeypatch.syspath_prepend(tmp_path / "site")
    with pytest.raises(ConfigError, match=r"`method.name` must name one part, but several packages install 'twice'"):
        Config.from_dict({"method": {"name": "twice"}})


def test_a_callable_brings_its_keys_types_and_defaults(module):
    name = module("""
        from typing import Literal

        from fedprox.methods import Method

        def made(count: int, kind: Literal["a", "b"] = "a", share=0.5, note: str = "", seed=None):
            return Method(f"made {count} {kind} {share} {note} {seed}")

        plain = Method("plain")
    """)
    settings = with_overrides({}, [f"method.name={name}:made", "method.count=3", "method.note=7", "seed=5"])
    config = Config.from_dict(settings)
    assert fedprox.methods.build(config.method, config.seed).name == "made 3 a 0.5 7 5"
    keys: Any = config.method
    assert (keys.kind, keys.share, keys.note) == ("a", 0.5, "7")
    for wrong, sentence in [
        ({}, r"`method.count` must be given with method.name = 'own_parts:made'"),
        ({"count": 1.5}, r"`method.count` must be an integer; got 1.5"),
        ({"count": 1, "kind": "c"}, r"`method.kind` must be one of a, b; got 'c'"),
        ({"count": 1, "share": "much"}, r"`method.share` must be a number; got 'much'"),
        ({"count": 1, "share": float("nan")}, r"`method.share` must be a finite number; got nan"),
        ({"count": 1, "seed": 3}, r"unknown key `method.seed`"),
    ]:
        with pytest.raises(ConfigError, match=sentence):
            Config.from_dict({"method": {"name": f"{name}:made", **wrong}})
    assert fedprox.methods.build(Config.from_dict({"method": {"name": f"{name}:plain"}}).method).name == "plain"
    with pytest.raises(ConfigError, match=r"unknown key `method.count`"):
        Config.from_dict({"method": {"name": f"{name}:plain", "count": 1}})


def test_models_data_and_solvers_of_ones_own(module):
    name = module("""
        import numpy as np

        from fedprox import models, solvers
        from fedprox.population import Population

        def net(population, hidden: int = 4):
            return models.mlp(population.shape[0], population.classes, hidden)

        def blobs(devices=3, spread=1.0, seed=0):
            random = np.random.default_rng(seed)
            device = np.repeat(np.arange(devices), 20)
            y = random.integers(0, 2, 20 * devices)
            return Population.from_arrays(random.normal(y[:, None] * 3, spread, (len(y), 2)), y, device)

        def slow(learning_rate: float = 0.125):
            solvers_seen.append(learning_rate)
            return solvers.sgd()

        def wrong(population):
            return 3

        solvers_seen = []
    """)
    config = Config.from_dict(
        {
            "rounds": 2,
            "data": {"name": f"{name}:blobs", "spread": 0.5, "seed": 3},
            "model": {"name": f"{name}:net", "hidden": 7},
            "solver": {"name": f"{name}:slow", "epochs": 1},
            "devices": {"per_round": 2},
        }
    )
    assert (config.data.devices, config.solver.learning_rate) == (3, 0.125)  # the callables' own defaults
    assert Config.from_dict(config.to_dict()) == config
    result = fedprox.train(config)
    assert result.params["hidden"]["weight"].shape == (2, 7)
    assert sys.modules[name].solvers_seen == [0.125]
    for wrong, sentence in [
        ({"data": {"name": f"{name}:net"}}, r"`data.population` must be given with data.name = 'own_parts:net'"),
        ({"data": {"name": f"{name}:slow"}}, r"`data.name` must name a Population.*which gives Sgd"),
        ({"model": {"name": f"{name}:wrong"}}, r"`model.name` must name a Model.*which gives int"),
        ({"solver": {"name": f"{name}:blobs"}}, r"`solver.name` must name a solver.*which gives Population"),
    ]:
        with pytest.raises(ConfigError, match=sentence):
            fedprox.train({"rounds": 1, **wrong})


def test_keys_of_builtin_models_and_solvers():
    config = Config.from_dict(
        {"rounds": 1, "model": {"name": "mlp", "hidden": 5}, "solver": {"name": "adam", "beta1": 0.5}}
    )
    assert fedprox.train(config).params["hidden"]["weight"].shape == (60, 5)
    with pytest.raises(ConfigError, match=r"`model.hidden` must be an integer >= 1; got 0"):
        Config.from_dict({"model": {"name": "mlp", "hidden": 0}})
    with pytest.raises(ConfigError, match=r"`model.hidden` must be left out with model.name = 'cnn'.*belongs to .*mlp"):
        Config.from_dict({"model": {"name": "cnn", "hidden": 5}})
    with pytest.raises(ConfigError, match=r"unknown key `solver.learning_rat`; did you mean `solver.learning_rate`"):
        Config.from_dict({"solver": {"learning_rat": 0.1}})


def test_a_mu_controller_by_name_takes_keys_and_resumes(module, tmp_path):
    name = module("""
        from dataclasses import asdict, dataclass, replace

        @dataclass(frozen=True)
        class Shrinking:
            mu: float
            factor: float = 0.5

            def after(self, signals):
                return replace(self, mu=self.mu * self.factor) if signals.weights else self

            def state(self):
                return asdict(self)

        def wrong():
            return 3
    """)
    config = {"rounds": 3, "method": {"mu": f"{name}:Shrinking", "mu_initial": 1.0, "factor": 0.25}}
    result = fedprox.train(config, out=tmp_path / "run")
    assert result.devices.column("mu") == [1.0, 0.25, 0.0625]
    more = fedprox.train({**config, "rounds": 4}, out=tmp_path / "run", resume=True)
    assert more.devices.column("mu")[-1] == 0.25**3
    with pytest.raises(ConfigError, match=r"`method.mu` must name a controller with `mu`, `after` and `state`"):
        fedprox.train({"method": {"mu": f"{name}:wrong"}})


def test_recipes_work_from_python_as_on_the_command_line():
    assert Config.of("synthetic-1-1").method.mu == 1.0
    with pytest.raises(ConfigError, match="did you mean `synthetic-1-1`"):
        Config.of("synthetic-1")
    with pytest.raises(ConfigError, match=r"config file nowhere.toml does not exist"):
        Config.of("nowhere.toml")


def test_fields_declared_without_a_type_count(module):
    name = module("""
        from dataclasses import dataclass
        from fedprox.methods import Method
        from fedprox.methods.merging import MergeRule

        @dataclass(frozen=True)
        class Dropping(Method):
            name = "dropping"
            keeps_partial_work = False
            strength: float = 0.5

        @dataclass(frozen=True)
        class First(MergeRule):
            needs_every_reply = True

        @dataclass(frozen=True)
        class Nameless(Method):
            strength: float = 0.5

        class Plain(Method):
            name = "plain"
            keeps_partial_work = False
    """)
    parts = sys.modules.get(name) or importlib.import_module(name)
    method: Any = methods.build(Config.of({"method": {"name": f"{name}:Dropping", "strength": 0.25}}).method)
    assert (method.name, method.keeps_partial_work, method.strength) == ("dropping", False, 0.25)
    assert parts.First().needs_every_reply
    with pytest.raises(ConfigError, match=r"\(missing a required argument: 'name': give it a default\); got"):
        methods.build(Config.of({"method": {"name": f"{name}:Nameless"}}).method)
    with pytest.raises(ConfigError, match=r"class Plain with `name`, `keeps_partial_work`; write `@dataclass"):
        parts.Plain("plain")


class Half(Method):
    def merge(self, server, params, averaged, summed):
        import jax

        return jax.tree.map(lambda w, a: w + 0.5 * (a - w), params, averaged), server


def test_compare_and_sweep_take_objects(tmp_path, small_population):
    plan = {"rounds": 2, "devices": {"per_round": 2}, "solver": {"epochs": 1}}
    methods: dict[str, Any] = {"drops": "fedavg", "half": Half("half")}
    comparison = fedprox.compare(plan, methods, seeds=2, out=tmp_path / "compare", population=small_population)
    assert [(row["method"], row["seeds"]) for row in comparison.table()] == [("drops", 2), ("half", 2)]
    mine = fedprox.train(plan, method=Half("half"), population=small_population)
    assert comparison.histories["half"][0][-1]["train_loss"] == mine.history[-1]["train_loss"]
    swept = fedprox.sweep(plan, {"method.mu": [0.0, 0.5]}, out=tmp_path / "sweep", population=small_population)
    assert len(swept.done) == 2
    again = fedprox.sweep(plan, ["method.mu=0.0,0.5"], out=tmp_path / "sweep", population=small_population)
    assert again.skipped == 2
    with pytest.raises(fedprox.FedProxError, match="was made with an object from Python as its data"):
        fedprox.sweep(plan, ["method.mu=0.0,0.5"], out=tmp_path / "sweep")
    assert isinstance(small_population, Population)
    assert np.isfinite(comparison.table()[0]["train_loss"])


SHORT: dict[str, Any] = {"rounds": 3, "devices": {"per_round": 2}, "solver": {"epochs": 1}}


def test_schedules_of_ones_own_and_built_in(module, small_population, tmp_path):
    name = module("""
        def warm(learning_rate, round, rounds, over: int = 2):
            return learning_rate * min(1.0, round / over)

        def zero(learning_rate, round, rounds):
            return 0.0
    """)

    def rates(**solver):
        config = {**SHORT, "solver": {**SHORT["solver"], "learning_rate": 0.1, **solver}}
        return fedprox.train(config, population=small_population).history.column("learning_rate")

    assert rates(schedule=f"{name}:warm", over=4) == pytest.approx([0.025, 0.025, 0.05, 0.075])
    assert rates(schedule="exponential", decay=0.5) == pytest.approx([0.1, 0.1, 0.05, 0.025])
    assert rates(schedule="step", step_rounds=2, step_factor=0.1) == pytest.approx([0.1, 0.1, 0.1, 0.01])
    assert rates(schedule="cosine", final_share=0.0) == pytest.approx([0.1, 0.1, 0.075, 0.025])
    with pytest.raises(fedprox.FedProxError, match=r"`solver.schedule` must give a number > 0 .* gives 0.0 in round 1"):
        rates(schedule=f"{name}:zero")
    with pytest.raises(ConfigError, match=r"`solver.schedule` must be 'constant' with solver.name = 'optax'"):
        rates(name="optax", options={"name": "sgd"}, schedule="cosine")
    with pytest.raises(ConfigError, match=r"`solver.decay` must be left out with solver.schedule = 'step'"):
        rates(schedule="step", decay=0.5)


def test_a_schedule_acts_as_the_same_rate_by_hand(small_population):
    one = {"rounds": 1, "devices": {"per_round": 2}}
    half = fedprox.train({**one, "solver": {"epochs": 1, "learning_rate": 0.05}}, population=small_population)
    first = {"epochs": 1, "learning_rate": 0.1, "schedule": "exponential"}
    scheduled = fedprox.train({**one, "solver": first}, population=small_population)
    assert scheduled.history[-1]["train_loss"] != half.history[-1]["train_loss"]
    plain = fedprox.train({**one, "solver": {"epochs": 1, "learning_rate": 0.1}}, population=small_population)
    assert scheduled.history[-1]["train_loss"] == plain.history[-1]["train_loss"]  # the first round has the full rate


def test_metrics_of_ones_own(module, small_population, tmp_path):
    name = module("""
        def wrong_share(labels, predictions):
            return (labels != predictions).mean()

        constant = 3
    """)
    config = {**SHORT, "measure": {"metrics": [f"{name}:wrong_share"]}}
    counted = {"hits": lambda labels, predictions: {"all": (labels == predictions).sum(), "nan": np.nan}}
    result = fedprox.train(config, population=small_population, metrics=counted, out=tmp_path / "run")
    for row in result.history:
        assert row["wrong_share"] == pytest.approx(1 - row["test_accuracy"])
        assert row["hits_all"] == round(row["test_accuracy"] * len(small_population.test))
        assert row["hits_nan"] is None
    written = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert written[-1]["wrong_share"] == result.history[-1]["wrong_share"]
    page = fedprox.report.write_report([tmp_path / "run"], tmp_path / "report.html", "")
    assert "wrong_share" in page.read_text()
    for measure, sentence in [
        ({"metrics": [f"{name}:constant"]}, r"`measure.metrics` must name functions"),
        ({"metrics": ["f1"]}, r"`measure.metrics` must be module:object; got 'f1'"),
        ({"metrics": "f1"}, r"`measure.metrics` must be a list of names, .*; got 'f1'"),
        ({"metrics": [f"{name}:wrong_share", f"{name}:wrong_share"]}, r"must have different names"),
    ]:
        with pytest.raises(ConfigError, match=sentence):
            fedprox.train({**SHORT, "measure": measure}, population=small_population)
    both = fedprox.compare(
        config, ["fedavg", "fedprox:mu=1"], seeds=2, out=tmp_path / "compared", population=small_population
    )
    for row in both.table():
        assert row["wrong_share"] == pytest.approx(1 - row["test_accuracy"])
        assert row["wrong_share_deviation"] == pytest.approx(row["test_accuracy_deviation"])
    shown = io.StringIO()
    Console(file=shown, width=200).print(comparison_table(both.table()))
    assert "wrong_share" in shown.getvalue()
    assert format(both.table()[0]["wrong_share"], ".4g") in shown.getvalue()
    with pytest.raises(ConfigError, match=r"different names; got a second 'seeds'"):
        fedprox.train(SHORT, population=small_population, metrics={"seeds": max})
    with pytest.raises(ConfigError, match=r"different names; got a second 'train_loss'"):
        fedprox.train(SHORT, population=small_population, metrics={"train_loss": max})


def test_a_stopping_rule_of_ones_own(module, small_population):
    name = module("""
        def after(history, round: int = 2):
            return history[-1]["round"] >= round
    """)
    config = {**SHORT, "stop": {"rule": f"{name}:after", "round": 1}}
    result = fedprox.train(config, population=small_population)
    assert (result.summary["ended"], result.summary["rounds"]) == ("stopped", 1)
    assert result.summary["stopping_rule"] == f"{name}:after"


def test_a_sampler_of_ones_own_sees_what_the_server_knows(module, small_population, tmp_path):
    name = module("""
        import numpy as np

        seen = []

        def worst(view, explore: int = 1):
            seen.append((view.round, dict(view.known), len(view.sizes)))
            unseen = [k for k in range(len(view.sizes)) if k not in view.known]
            fresh = view.random().permutation(unseen)[: explore if view.known else view.per_round].tolist()
            known = sorted(view.known, key=lambda k: -view.known[k].loss)
            return np.array([*fresh, *known[: view.per_round - len(fresh)]], int)

        def twice(view):
            return [0, 0, 1]

        twice.weighs_draws = True

        def wrong(view):
            return [99]
    """)
    config = {**SHORT, "devices": {"per_round": 2, "sampling": f"{name}:worst"}}
    result = fedprox.train(config, population=small_population, out=tmp_path / "all")
    seen = sys.modules[name].seen
    first = result.devices[0]["device"]
    assert [round for round, _, _ in seen] == [1, 2, 3]
    assert seen[0][1] == {}
    assert set(seen[1][1]) == set(first)
    assert all(each.last_round == 1 and each.loss > 0 and each.seconds is None for each in seen[1][1].values())
    worst = max(seen[1][1], key=lambda device: seen[1][1][device].loss)
    assert worst in result.devices[1]["device"]
    part = {**config, "rounds": 2, "checkpoint": {"every": 1}}
    fedprox.train(part, population=small_population, out=tmp_path / "part")
    again = fedprox.train({**part, "rounds": 3}, population=small_population, out=tmp_path / "part", resume=True)
    assert again.devices.column("device") == result.devices.column("device")
    drawn = {**SHORT, "devices": {"per_round": 3, "sampling": f"{name}:twice"}}
    row = fedprox.train(drawn, population=small_population).devices[0]
    assert (row["device"], row["draws"], row["weight"]) == ([0, 1], [2, 1], pytest.approx([2 / 3, 1 / 3]))
    with pytest.raises(fedprox.FedProxError, match=r"the sampler '.*:wrong' must return devices from 0 to .*; got 99"):
        fedprox.train({**SHORT, "devices": {"sampling": f"{name}:wrong"}}, population=small_population)


def test_a_sampler_of_ones_own_works_on_the_clock(tmp_path, small_population):
    views = []

    def in_turn(view):
        views.append(view)
        unseen = [device for device in range(len(view.sizes)) if device not in view.known]
        return (unseen or [1, 2])[: view.per_round]

    rates = {"samples_per_second": 100, "download_bytes_per_second": 1e6, "upload_bytes_per_second": 1e6}
    trace = [{**rates, "available": [[80000, 86400]]}]  # device 0, which is chosen first, is away
    trace += [rates] * (small_population.devices - 1)
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in trace))
    config = {**SHORT, "systems": {"model": "clock", "trace": str(tmp_path / "trace.jsonl")}}
    result = fedprox.train(config, population=small_population, sampler=in_turn, out=tmp_path / "run")
    assert all(0 not in row["device"] for row in result.devices)
    assert [row["away"] for row in result.devices] == [1, 1, 1]
    assert views[-1].available.tolist() == [1, 2, 3, 4]
    assert views[-1].known[1].seconds == result.devices[0]["seconds"][0]
    assert result.history[-1]["simulated_seconds"] > 0
    page = fedprox.report.write_report([tmp_path / "run"], tmp_path / "report.html", "").read_text()
    assert "Who was reached" in page
    assert "the sampling scheme's target" not in page  # which is not known of an own sampler
    untimed = {"population": small_population, "systems": lambda view: view.full_budget}
    told = fedprox.train(config, **untimed, out=tmp_path / "untimed")
    assert "simulated_seconds" not in told.history[-1]  # the object takes the place of the clock
    assert "Who was reached" not in told.report(tmp_path / "other.html").read_text()


def test_a_systems_model_of_ones_own(module, small_population):
    name = module("""
        import numpy as np

        def halves(view, share: float = 0.5):
            budget = np.maximum(1, (share * view.full_budget).astype(int))
            budget[0] = 0
            return budget

        def wrong(view):
            return [1]
    """)
    systems = {"model": f"{name}:halves", "share": 0.25}
    config = {"rounds": 1, "solver": {"epochs": 4}, "devices": {"per_round": 3}, "systems": systems}
    row = fedprox.train(config, population=small_population).devices[0]
    assert row["kept"] == [False, True, True]
    assert row["straggler"] == [True, True, True]
    assert row["budget"][0] == 0
    assert row["weight"][0] == 0.0
    with pytest.raises(fedprox.FedProxError, match=r"the systems model '.*:wrong' must return a number of steps"):
        fedprox.train({**config, "systems": {"model": f"{name}:wrong"}}, population=small_population)


def test_an_engine_of_ones_own(module, small_population):
    name = module("""
        from fedprox.engines.by_name import local_engine

        class Counting:
            rounds = 0

            def __init__(self, run, limit: int = 10):
                self.inner, self.limit = local_engine(run), limit

            def __getattr__(self, name):
                return getattr(self.inner, name)

            def solve(self, *arguments, **more):
                Counting.rounds += 1
                return self.inner.solve(*arguments, **more)

        def wrong(run):
            return 3
    """)
    own = fedprox.train({**SHORT, "engine": {"name": f"{name}:Counting", "limit": 3}}, population=small_population)
    assert sys.modules[name].Counting.rounds == 3
    plain = fedprox.train(SHORT, population=small_population)
    assert own.history.column("train_loss") == plain.history.column("train_loss")
    with pytest.raises(ConfigError, match=r"`engine.name` must name an engine, which has `workers`.*gives int"):
        fedprox.train({**SHORT, "engine": {"name": f"{name}:wrong"}}, population=small_population)


def test_a_merge_rule_of_ones_own_takes_its_fields_as_keys(module, small_population):
    name = module("""
        from dataclasses import dataclass

        from fedprox.methods.merging import MergeRule

        @dataclass(frozen=True)
        class First(MergeRule):
            name: str = "first"
            needs_every_reply: bool = True
            position: int = 0

            def merge(self, replies, weights):
                return replies[self.position]
    """)
    config = Config.from_dict({**SHORT, "merge": {"rule": f"{name}:First", "position": 1}})
    assert config.to_dict()["merge"] == {"rule": f"{name}:First", "position": 1}
    one, other = (
        fedprox.train({**SHORT, "merge": {"rule": f"{name}:First", "position": position}}, population=small_population)
        for position in (0, 1)
    )
    assert one.history[-1]["train_loss"] != other.history[-1]["train_loss"]
    with pytest.raises(ConfigError, match=r"unknown key `merge.needs_every_reply`"):
        Config.from_dict({"merge": {"rule": f"{name}:First", "needs_every_reply": False}})
