"""The list of settings: complete, the same on the page, on the command line and in errors."""

import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedprox.cli import app
from fedprox.cli.app import complete_config, complete_method, complete_setting
from fedprox.config import Config, with_overrides
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


@pytest.mark.parametrize(("given", "meant"), [("mu=1", "method.mu"), ("lr=0.1", "solver.learning_rate")])
def test_short_names_are_answered_with_the_key(given: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"did you mean `{meant}`\?"):
        Config.from_dict(with_overrides({}, [given]))


def test_a_key_of_a_table_can_be_set() -> None:
    settings = with_overrides({"solver": {"options": {"b2": 0.9}}}, ["solver.name=adam", "solver.options.b1=0.8"])
    assert settings["solver"]["options"] == {"b2": 0.9, "b1": 0.8}


def test_completion_knows_recipes_keys_and_methods() -> None:
    assert "synthetic-1-1" in complete_config("syn")
    assert complete_setting("solver.ep") == ["solver.epochs="]
    assert "method.name=feddyn" in complete_setting("method.name=fedd")
    assert "fedprox" in complete_method("fedp")
