"""The examples run, and what they train learns."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize("name", ["pytorch_cnn", "flax_cnn", "equinox_mlp"])
def test_an_example_learns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    try:
        accuracy = importlib.import_module(name).main(rounds=4)
    finally:
        sys.modules.pop(name, None)
        sys.modules.pop("images", None)
    assert accuracy > 0.6  # a quarter by guessing
