"""The doctor, and what every command says of itself."""

import json
import shlex
from typing import Any

import platformdirs
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from fedprox import doctor
from fedprox.cli import app
from fedprox.core.extras import Extra

GROUP: Any = get_command(app)
COMMANDS = sorted(GROUP.commands)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example_that_it_understands(name: str) -> None:
    result = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == 0
    command = GROUP.commands[name]
    example = command.help.split("Example: ")[1].split("\n")[0].split(" && ")[0]
    program, called, *arguments = shlex.split(example)
    assert (program, called) == ("fedprox", name)
    command.make_context(name, arguments)  # parses the options and raises where one does not exist


def test_the_doctor_finds_this_machine_well() -> None:
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 0
    findings = {finding["what"]: finding for finding in json.loads(result.stdout)["findings"]}
    assert "jax" in findings["packages"]["text"]
    assert findings["jax"]["level"] == "ok"
    assert "cores can be used" in findings["cores"]["text"]


def test_the_doctor_says_what_is_wrong_and_how_to_fix_it(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: blocked / name)
    monkeypatch.setattr(doctor, "EXTRAS", {"ray": Extra("no_such_module", "Ray", "a cluster")})
    monkeypatch.setattr(doctor, "_NEEDED", ("jax", "no-such-package"))
    result = CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "200"})
    assert result.exit_code == 1
    assert "cannot be written: Not a directory" in result.output
    assert "-> pip install 'fedprox[ray]'" in result.output
    assert "-> pip install no-such-package" in result.output
    assert "2 problems found" in result.output
    monkeypatch.setattr(doctor, "_NEEDED", ("jax",))
    assert "\n1 problem found" in CliRunner().invoke(app, ["doctor"]).output
