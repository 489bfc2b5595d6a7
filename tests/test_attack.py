"""The harness itself: a few cases of every kind, so that it works when it is needed."""

import contextlib
import random

import pytest

from attack.kills import COMMANDS
from attack.kinds import KINDS, OURS


@pytest.mark.parametrize("kind", KINDS)
def test_cases_end_with_data_or_a_sentence(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    KINDS[kind].make(tmp_path)
    for number in range(3 if kind in ("run folders", "checkpoints", "records", "configs") else 20):
        with contextlib.suppress(OURS):
            KINDS[kind].attack(tmp_path, random.Random(f"test {kind} {number}"))


def test_a_case_is_the_same_whenever_it_is_repeated(tmp_path):
    KINDS["npz"].make(tmp_path)
    contents = []
    for _ in range(2):
        with pytest.raises(OURS):
            KINDS["npz"].attack(tmp_path, random.Random("0 npz 1"))
        contents.append((tmp_path / "case" / "data.npz").read_bytes())
    assert contents[0] == contents[1]


def test_every_kind_of_command_is_killed():
    assert set(COMMANDS) == {"run", "sweep", "compare", "paper", "data", "population", "deploy"}
