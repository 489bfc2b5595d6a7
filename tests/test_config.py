import hashlib
import json
import tomllib

import pytest

from fedprox.config import Config, with_overrides
from fedprox.config.recipes import load_settings, names
from fedprox.core.errors import ConfigError
from fedprox.runs.identity import run_identity


def test_defaults_are_the_contract():
    config = Config.from_dict({})
    assert config.rounds == 200
    assert (config.data.name, config.data.alpha, config.data.devices) == ("synthetic", 1.0, 30)
    assert (config.method.name, config.method.mu) == ("fedprox", 0.0)
    assert (config.solver.learning_rate, config.solver.batch_size, config.solver.epochs) == (0.01, 10, 20)
    assert (config.devices.per_round, config.devices.sampling, config.devices.stragglers) == (10, "uniform", 0.0)
    assert config.checkpoint.every == 10


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"method": {"mu": -1.0}}, r"`method.mu` must be a number >= 0.*; got -1.0"),
        ({"method": {"mu": float("nan")}}, r"`method.mu` must be .*; got nan"),
        ({"method": {"mu": "often"}}, r"`method.mu` must be .*; got 'often'"),
        ({"method": {"mu": True}}, r"`method.mu` must be .*; got True"),
        ({"method": {"name": "fedavg", "mu": 0.1}}, r"`method.mu` must be left out with method.name = 'fedavg'.* 0.1"),
        ({"method": {"name": "fedpox"}}, r"`method.name` must be one of .*fedprox.*; got 'fedpox'"),
        ({"devices": {"stragglers": 1.5}}, r"`devices.stragglers` must be a number in \[0, 1\]; got 1.5"),
        ({"devices": {"per_round": 0}}, r"`devices.per_round` must be an integer >= 1; got 0"),
        ({"devices": {"per_round": 2.5}}, r"`devices.per_round` must be an integer >= 1; got 2.5"),
        ({"solver": {"epochs": 0}}, r"`solver.epochs` must be an integer >= 1; got 0"),
        ({"solver": {"epochs": "20"}}, r"`solver.epochs` must be an integer >= 1; got '20'"),
        ({"solver": {"learning_rate": float("inf")}}, r"`solver.learning_rate` must be a number > 0; got inf"),
        ({"data": {"alpha": float("nan")}}, r"`data.alpha` must be a number >= 0; got nan"),
        ({"rounds": True}, r"`rounds` must be an integer >= 1; got True"),
        ({"rouns": 3}, r"unknown key `rouns`; did you mean `rounds`\?"),
        ({"method": {"mue": 3}}, r"unknown key `method.mue`; did you mean `method.mu`\?"),
        ({"solvr": {"epochs": 3}}, r"unknown key `solvr`; did you mean `solver`\?"),
        ({"solver": {"lr": 0.1}}, r"unknown key `solver.lr`; did you mean `solver.learning_rate`\?"),
        ({"solver": {"mu": 0.1}}, r"unknown key `solver.mu`; did you mean `method.mu`\?"),
        ({"privacy": {"noise": 1}}, r"unknown key `privacy.noise`; did you mean `privacy.noise_multiplier`\?"),
        (
            {"privacy": {"budget": 1}},
            r"unknown key `privacy.budget`; `privacy` has clip, noise_multiplier, where, delta",
        ),
        ({"solver": 3}, r"`solver` must be a table of settings; got 3"),
        (
            {"measure": {"every": 5}, "method": {"mu": "adaptive"}},
            r"`measure.every` must be 1 with `method.mu = 'adapt",
        ),
        ({"measure": {"every": 5}, "stop": {"converged": True}}, r"`measure.every` must be 1 with `stop.converged`"),
        ({"data": {"name": "leaf"}}, r"`data.path` must be given"),
        (
            {"data": {"name": "csv", "path": "a", "devices": 9}},
            "`data.devices` must be left out .* own, unless .*; got 9",
        ),
        (
            {"data": {"name": "mnist", "alpha": 0.1}},
            "`data.alpha` must be left out with data.name = 'mnist', .*; got 0.1",
        ),
        ({"data": {"path": "a.csv"}}, "`data.path` must be left out .*; to read the file set data.name = 'csv'"),
        ({"solver": {"options": {"eps": float("nan")}}}, r"`solver.options.eps` must be a finite number; got nan"),
        ({"solver": {"options": {"a": {"b": [0.0, float("inf")]}}}}, r"`solver.options.a.b\[1\]` must be .*; got inf"),
    ],
)
def test_a_bad_value_gets_one_sentence_with_field_rule_and_value(settings, sentence):
    with pytest.raises(ConfigError, match=sentence) as error:
        Config.from_dict(settings)
    assert "\n" not in str(error.value)
    assert error.value.exit_code == 2


@pytest.mark.parametrize("method", [{"name": "fedavg"}, {"mu": 0.001}, {"mu": "adaptive", "mu_initial": 1.0}])
def test_a_config_survives_toml(tmp_path, method):
    config = Config.from_dict({"seed": 3, "method": method, "data": {"name": "npz", "path": 'a "quoted" \\ path'}})
    assert Config.from_dict(tomllib.loads(config.to_toml())) == config
    file = tmp_path / "c.toml"
    file.write_text(config.to_toml())
    assert Config.of(file) == config == Config.of(str(file)) == Config.of(config)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        Config.from_toml(tmp_path / "missing.toml")
    (tmp_path / "broken.toml").write_text("rounds = ")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        Config.from_toml(tmp_path / "broken.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        Config.from_toml(tmp_path / "binary.toml")


def test_overrides_read_toml_and_fall_back_to_text():
    settings = with_overrides({}, ["rounds=7", "method.mu=adaptive", "data.path=3", "stop.diverged=true", "seed=1"])
    assert settings == {
        "rounds": 7,
        "method": {"mu": "adaptive"},
        "data": {"path": "3"},  # a key that wants text takes it as it is
        "stop": {"diverged": True},
        "seed": 1,
    }
    with pytest.raises(ConfigError, match=r"section\.key=value"):
        with_overrides({}, ["rounds"])
    with pytest.raises(ConfigError, match=r"section\.key=value"):
        with_overrides({}, ["a.b.c=1"])
    with pytest.raises(ConfigError, match="`rounds` is not a section"):
        with_overrides({"rounds": 3}, ["rounds.x=1"])


def test_another_method_leaves_behind_what_the_recipe_says_of_its_own():
    recipe = load_settings("synthetic-1-1")
    assert with_overrides(recipe, ["method.name=fedavg"])["method"] == {"name": "fedavg"}
    assert with_overrides(recipe, ["method.name=feddane"])["method"] == {"name": "feddane", "mu": 1.0}
    for given in (["method.mu=1", "method.name=fedavg"], ["method.name=fedavg", "method.mu=1"]):
        with pytest.raises(ConfigError, match=r"`method.mu` must be left out"):
            Config.from_dict(with_overrides(recipe, given))  # what a user gives is never dropped in silence


def test_the_settings_given_are_not_changed():
    settings = {"method": {"mu": 1.0}}
    with_overrides(settings, ["method.mu=2"])
    assert settings == {"method": {"mu": 1.0}}


def test_every_recipe_is_valid():
    assert {"synthetic-1-1", "synthetic-0-0", "synthetic-0.5-0.5", "synthetic-iid"} <= set(names())
    for name in names():
        Config.from_dict({key: value for key, value in load_settings(name).items() if key != "compare"})
    with pytest.raises(ConfigError, match="did you mean `synthetic-1-1`"):
        load_settings("synthetic-1")


@pytest.mark.parametrize(("name", "kind"), [("own.csv", "csv"), ("data/own.csv.gz", "csv"), ("own.parquet", "arrow")])
def test_a_file_in_place_of_a_data_set_is_answered_with_how_it_is_read(name: str, kind: str) -> None:
    with pytest.raises(ConfigError, match=rf"set `data.name` to '{kind}' and `data.path` to '{name}'$"):
        Config.from_dict({"data": {"name": name}})


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"seed": 2**70}, f"`seed` must be below 2^63; got {2**70}"),
        ({"merge": {"rule": "krum", "byzantine": 10**30}}, f"`merge.byzantine` must be at most 1e+09; got {10**30}"),
    ],
)
def test_a_number_beyond_a_bound_is_told_the_bound(settings, sentence):
    with pytest.raises(ConfigError) as raised:
        Config.from_dict(settings)
    assert str(raised.value) == sentence


@pytest.mark.parametrize(
    ("section", "name", "stated"),
    [
        ("merge", {"rule": "trimmed_mean"}, {"trim": 0.1}),
        ("merge", {"rule": "krum"}, {"byzantine": 1}),
        ("solver", {"schedule": "exponential"}, {"decay": 0.99}),
        ("model", {"name": "mlp"}, {"hidden": 128}),
        ("method", {"name": "qffl"}, {"q": 0.0}),
        ("method", {"name": "scaffnew"}, {"probability": 0.1}),
    ],
)
def test_a_resolved_config_states_the_keys_of_its_parts(section, name, stated):
    resolved = Config.from_dict({section: name}).to_dict()
    assert stated.items() <= resolved[section].items()
    assert Config.from_dict(resolved).to_dict() == resolved


@pytest.mark.parametrize(
    ("settings", "counted"),
    [
        ({"merge": {"rule": "trimmed_mean"}}, {"merge.rule": "trimmed_mean"}),
        ({"merge": {"rule": "trimmed_mean", "trim": 0.2}}, {"merge.rule": "trimmed_mean", "merge.trim": 0.2}),
        ({"solver": {"schedule": "exponential"}}, {"solver.schedule": "exponential"}),
        ({"model": {"name": "mlp"}, "rounds": 7}, {"model.name": "mlp"}),
        ({"method": {"name": "feddyn"}}, {"method.alpha": 0.1, "method.name": "feddyn"}),
    ],
)
def test_a_run_stays_the_same_when_a_later_version_states_a_default(settings, counted):
    digest = hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()
    assert run_identity(Config.from_dict(settings), {})["config"] == digest


@pytest.mark.parametrize("key", ["config", "source", "traffic"])
def test_what_the_clock_is_made_of_is_no_setting(key):
    with pytest.raises(ConfigError, match=f"unknown key `systems.{key}`"):
        Config.from_dict({"systems": {"model": "clock", key: 5}})


def test_a_tilde_in_a_path_is_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("USERPROFILE", "/home/me")
    config = Config.from_dict(
        {
            "data": {"name": "npz", "path": "~/a.npz"},
            "model": {"init": "~/run"},
            "systems": {"model": "clock", "trace": "~/trace.toml"},
        }
    )
    assert (config.data.path, config.model.init) == ("/home/me/a.npz", "/home/me/run")
    assert config.systems.trace == "/home/me/trace.toml"


def test_text_that_a_config_file_cannot_hold() -> None:
    with pytest.raises(ConfigError, match=r"`data.path` must be text in UTF-8; got 'caf\\+udce9.npz'"):
        Config.from_dict({"data": {"name": "npz", "path": "caf\udce9.npz"}})


def test_settings_that_another_data_set_does_not_have_are_dropped() -> None:
    settings = with_overrides({"data": {"name": "synthetic", "alpha": 0.0, "devices": 9}}, ["data.name=mnist"])
    assert Config.from_dict(settings).data.devices == 30
    divided = {"data": {"name": "cifar10", "partition": "iid", "devices": 9}}
    assert Config.from_dict(with_overrides(divided, ["data.name=mnist"])).data.devices == 9
