"""The list of settings: complete, the same on the page, on the command line and in errors."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedprox.solvers
from fedprox.cli import app, main
from fedprox.cli.completion import bash_words, complete_config, complete_method, complete_setting
from fedprox.config import Config, with_overrides
from fedprox.config.meanings import MEANINGS
from fedprox.config.settings_list import all_settings, commented_toml, settings_page
from fedprox.core.errors import ConfigError


def test_every_setting_has_a_meaning_and_a_rule() -> None:
    assert [each.key for each in all_settings() if not each.meaning or not each.rule] == []  # add it to meanings.py


def test_the_page_is_up_to_date() -> None:
    page = Path(__file__).parents[1] / "docs" / "settings.md"
    assert page.read_text() == settings_page(), "run: python docs/make_settings.py"


def test_a_new_file_is_the_default_config() -> None:
    assert Config.from_dict(tomllib.loads(commented_toml())) == Config.from_dict({})
    done = CliRunner().invoke(app, ["config", "new"])
    assert done.stdout == commented_toml()


def test_show_and_explain() -> None:
    shown = CliRunner().invoke(app, ["config", "show", "synthetic-1-1", "-s", "method.mu=0.25"])
    assert tomllib.loads(shown.stdout)["method"]["mu"] == 0.25
    explained = CliRunner().invoke(app, ["config", "explain", "method.alpha"])
    assert "only with feddyn" in explained.stdout
    wrong = CliRunner().invoke(app, ["config", "explain", "epochs"])
    assert (wrong.exit_code, wrong.stderr) == (2, "fedprox: unknown key `epochs`; did you mean `solver.epochs`?\n")


@pytest.mark.parametrize(
    ("given", "meant"), [("lr", "solver.learning_rate"), ("mu", "method.mu"), ("K", "devices.per_round")]
)
def test_explain_knows_short_names(given: str, meant: str) -> None:
    done = CliRunner().invoke(app, ["config", "explain", given])
    assert (done.exit_code, done.stderr) == (2, f"fedprox: unknown key `{given}`; did you mean `{meant}`?\n")


@pytest.mark.parametrize("arguments", [["new"], ["explain", "method.mu"]])
def test_settings_of_every_config_are_told_without_jax(arguments: list[str]) -> None:
    code = (
        "import sys; from fedprox.cli import app; app(sys.argv[1:], standalone_mode=False); print('jax' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "config", *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "False"


def test_the_example_of_a_solver_option_works() -> None:
    (option,) = (word.strip("`,") for word in MEANINGS["solver.options"].split() if word.startswith("solver.options."))
    config = Config.from_dict(with_overrides({}, ["solver.name=adam", f"{option}=0.8"]))
    assert config.solver.options == {"beta1": 0.8}
    fedprox.solvers.build(config.solver)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("mu=1", "method.mu"),
        ("lr=0.1", "solver.learning_rate"),
        ("beta1=0.8", "method.beta1` or `solver.beta1"),  # keys of single parts
        ("gama=true", "solver.gamma` or `measure.gamma"),
        ("method=fedavg", "method.name"),
    ],
)
def test_short_names_are_answered_with_the_key(given: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"did you mean `{meant}`\?"):
        Config.from_dict(with_overrides({}, [given]))


def test_a_key_of_a_table_can_be_set() -> None:
    settings = with_overrides({"solver": {"options": {"b2": 0.9}}}, ["solver.name=adam", "solver.options.b1=0.8"])
    assert settings["solver"]["options"] == {"b2": 0.9, "b1": 0.8}


def test_completion_knows_recipes_keys_and_methods() -> None:
    assert "synthetic-1-1" in complete_config("syn")
    assert complete_setting("solver.ep") == ["solver.epochs=", "solver.epochs=20"]
    assert "method.name=feddyn" in complete_setting("method.name=fedd")
    assert "fedprox" in complete_method("fedp")


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("fedprox run synthetic-1-1 -s method.name = fedd", ["feddane", "feddyn"]),
        ("fedprox run synthetic-1-1 -s method.mu = 1 -s solver.ep", ["solver.epochs=", "solver.epochs=20"]),
        ("fedprox run synthetic-1-1 -s solver.epochs =", ["20"]),
        ("fedprox sweep synthetic-1-1 -g data.name = synthetic_", ["synthetic_iid"]),
        ("fedprox run synthetic-1-1 -s measure.gamma =", ["true", "false"]),
        ("fedprox config explain solver.ep", ["solver.epochs"]),
        ("fedprox data prepare fem", ["femnist"]),
        ("fedprox paper figure12", ["figure12"]),
        ("fedprox data stats synthetic_", ["synthetic_iid"]),
        ("fedprox compare synthetic-1-1 -m fedadam : beta", ["beta1=", "beta2="]),
        ("fedprox compare synthetic-1-1 -m fedprox : mu = 1,mu_s", ["1,mu_step=", "1,mu_step=0.1"]),
        ("fedprox run synthetic-1-1 --track ten", ["tensorboard"]),
    ],
)
def test_bash_completes_words_that_it_has_taken_apart(
    words: str, completed: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = words.split()
    monkeypatch.setattr(sys, "argv", ["fedprox"])
    monkeypatch.setenv("_FEDPROX_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "\n".join(parts))
    monkeypatch.setenv("COMP_CWORD", str(len(parts) - 1))
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().out.split() == completed


def test_words_of_other_shells_are_left_alone() -> None:
    variables = {"_FEDPROX_COMPLETE": "complete_zsh", "COMP_WORDS": "a\n=", "COMP_CWORD": "1"}
    with bash_words(variables):
        pass
    assert variables["COMP_WORDS"] == "a\n="


def test_an_option_of_a_solver_is_stated_once_with_the_value_that_is_used() -> None:
    solver = Config.from_dict({"solver": {"name": "adam", "options": {"beta1": 0.8}}}).to_dict()["solver"]
    assert (solver["beta1"], solver["beta2"]) == (0.8, 0.999)
    assert Config.from_dict({"solver": solver}).to_dict()["solver"] == solver
    both = {"name": "adam", "beta1": 0.9, "options": {"beta1": 0.8}}
    with pytest.raises(ConfigError, match=r"`solver.options.beta1` must be left out or equal .* = 0.9; got 0.8"):
        Config.from_dict({"solver": both})


def test_a_run_folder_in_place_of_its_config_is_answered_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.toml").touch()
    with pytest.raises(ConfigError, match=r"is a run folder, whose settings are in .*config\.toml$"):
        Config.from_toml(tmp_path)
