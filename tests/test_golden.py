"""A refactoring must give the same trajectories: the same draws exactly, the same losses but for rounding."""

import json

import pytest

import make_golden

GOLDEN = json.loads(make_golden.FILE.read_text())


@pytest.mark.parametrize("name", make_golden.RUNS)
def test_trajectories_are_those_on_record(name):
    now = make_golden.trajectory(name)
    assert now["devices"] == GOLDEN[name]["devices"]
    assert now["budget"] == GOLDEN[name]["budget"]
    for column, values in GOLDEN[name]["metrics"].items():
        assert now["metrics"][column] == pytest.approx(values, rel=2e-3, abs=1e-4), column
