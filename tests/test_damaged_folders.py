"""Run folders damaged at random are answered with data or with one sentence, never with a traceback."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import fedprox
from fedprox.core.errors import FedProxError, RunFolderError
from fedprox.report import write_report
from fedprox.report.watch import states, text_line
from fedprox.runs.evaluate import evaluate
from fedprox.runs.export import export

CASES = 210


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("damaged") / "run"
    fedprox.train({"rounds": 3, "data": {"devices": 12}, "solver": {"epochs": 1}}, out=out)
    return out


def damage(folder: Path, random: np.random.Generator) -> None:
    """Change a few bytes of a file, cut it off, repeat a piece of it, or remove it."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.name != "lock")
    file = files[random.integers(len(files))]
    data = bytearray(file.read_bytes())
    kind = random.integers(8)
    if kind == 0:
        file.unlink()
        return
    if kind == 1:
        data = data[: random.integers(len(data) + 1)]
    elif kind == 2:
        begin = random.integers(len(data))
        data[begin:begin] = data[begin : begin + random.integers(200)]
    else:
        for _ in range(random.integers(1, 4)):
            data[random.integers(len(data))] = random.choice([0, 32, 34, 45, 48, 57, 91, 93, 123, 125, 255])
    file.write_bytes(bytes(data))


def test_damage_is_answered_with_data_or_a_sentence(run: Path, tmp_path: Path) -> None:
    random, problems = np.random.default_rng(7), []
    refused = 0
    for case in range(CASES):
        folder = tmp_path / f"run-{case}"
        shutil.copytree(run, folder)
        damage(folder, random)

        def look(folder: Path = folder) -> None:
            saved = fedprox.load_run(folder)
            assert saved.devices is not None
            assert saved.evaluation is not None
            saved._repr_html_()

        readers = {
            "load_run": look,
            "watch": lambda folder=folder: [text_line(state) for state in states(folder)],
            "export": lambda folder=folder: export(folder, tmp_path / "export"),
        }
        if case % 3 == 0:  # the slow ones
            readers["report"] = lambda folder=folder: write_report([folder], tmp_path / "report.html")
        if case % 15 == 0:
            readers["evaluate"] = lambda folder=folder: evaluate(folder)
        for name, read in readers.items():
            try:
                read()
            except FedProxError:
                refused += 1
            except Exception as error:
                problems.append(f"case {case}, {name}: {type(error).__name__}: {error}")
        shutil.rmtree(folder)
    assert not problems, "\n".join(problems)
    assert refused > CASES // 4


@pytest.mark.parametrize(
    ("name", "line", "sentence"),
    [
        ("metrics", '{"train_loss": 1.0}', r"metrics.jsonl, line 1: `round` is missing"),
        ("metrics", '{"round": "0"}', r"line 1: `round` must be a valid integer; got '0'"),
        ("metrics", '{"round": 0}\n{"round": 0}', r"line 2: `round` must rise from row to row; got 0 after 0"),
        ("metrics", "[1]", r"must hold one JSON object per line; line 1 is not one"),
        ("devices", '{"round": 1, "device": [1.5]}', r"devices.jsonl, line 1: `device.0` must be a valid integer"),
    ],
)
def test_a_row_that_is_none_is_named(run: Path, tmp_path: Path, name: str, line: str, sentence: str) -> None:
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / f"{name}.jsonl").write_text(line + "\n")
    with pytest.raises(RunFolderError, match=sentence):
        fedprox.load_run(tmp_path / "run").devices  # noqa: B018 - read when it is asked for


def test_lists_of_different_length_are_refused(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    file = tmp_path / "run" / "devices.jsonl"
    first = json.loads(file.read_text().splitlines()[0])
    file.write_text(json.dumps({**first, "kept": [True]}) + "\n")
    with pytest.raises(RunFolderError, match=r"`kept` must be as long as `device`, 10; got 1"):
        export(tmp_path / "run", tmp_path / "out")


@pytest.mark.parametrize("half", [rb"\ud800", b"\xed\xa0\x80"])
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_half_a_surrogate_pair_is_exported_as_its_escape(run: Path, tmp_path: Path, half: bytes, form: str) -> None:
    if form == "parquet":
        pytest.importorskip("polars")
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    file = folder / "evaluation.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"name": "0"', b'"name": "' + half + b'"', 1))
    assert half in file.read_bytes()
    assert next(row["name"] for row in fedprox.load_run(folder).evaluation) == r"\ud800"
    assert rb"\ud800" in b"".join(path.read_bytes() for path in export(folder, tmp_path / "out", [form]))
