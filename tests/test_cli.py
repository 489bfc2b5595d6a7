"""The command line as a person and a program use it: real processes where a process is the point."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

SMALL = ["-s", "rounds=3", "-s", "solver.epochs=1", "-s", "data.devices=12"]


def fedprox(*arguments, cwd, **options):
    command = [sys.executable, "-m", "fedprox", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False, **options)


@pytest.mark.usefixtures("started_anew")
def test_run_writes_a_folder_and_says_what_came_of_it(tmp_path):
    done = fedprox("run", "synthetic-1-1", *SMALL, "--out", "here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "finished after 3 rounds" in done.stdout
    assert done.stderr == ""  # no progress bar where there is no terminal
    assert (tmp_path / "here" / "summary.json").exists()
    again = fedprox("run", "synthetic-1-1", *SMALL, "--out", "here", cwd=tmp_path)
    assert again.returncode == 2
    problem = "here already holds a run; choose another folder, or continue it with --resume (in Python resume=True)"
    assert again.stderr == f"fedprox: {problem}\n"


def test_run_for_programs(in_process, tmp_path):
    done = in_process("run", "synthetic-iid", *SMALL, "--json", cwd=tmp_path)
    answer = json.loads(done.stdout)
    assert answer["summary"]["rounds"] == 3
    assert (tmp_path / answer["out"]).is_dir()


def test_a_config_file_of_a_run_runs_it_again(in_process, tmp_path):
    in_process("run", "synthetic-1-1", *SMALL, "--out", "first", cwd=tmp_path)
    done = in_process("run", "first/config.toml", "--out", "second", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("first", "second"))
    assert first == second


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "synthetic-1-1", "-s", "method.mu=-1"], "`method.mu` must be a number >= 0"),
        (["run", "synthetic-1-1", "-s", "method.mu=nan"], "`method.mu` must be"),
        (["run", "synthetic-1-1", "-s", "methd.mu=1"], "unknown key `methd`; did you mean `method`?"),
        (
            ["run", "synthetic-1-1", "-s", "devices.per_round=31"],
            "`devices.per_round` must be an integer from 1 to 30",
        ),
        (["run", "synthetic-1-2"], "did you mean `synthetic-1-1`?"),
        (["run", "missing.toml"], "config file missing.toml does not exist"),
        (["run", "synthetic-1-1", "--resume"], "`--out` must be given with --resume"),
        (
            ["run", "synthetic-1-1", "-s", "data.name=leaf", "-s", "data.path=nowhere"],
            "nowhere/train must hold LEAF files",
        ),
        (["compare", "synthetic-1-1", "-m", "fedavg:mu=1"], "`method.mu` must be left out"),
        (["compare", "synthetic-1-1", "-m", "fedprox:mu"], "name:key=value"),
        (
            ["compare", "synthetic-1-1", "-m", "fedavg", "-m", "fedprox:mu=1", "-m", "fedavg", "--out", "both"],
            "fedavg and fedavg would share both/fedavg/seed-0",
        ),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_code_2_and_writes_nothing(in_process, tmp_path, arguments, sentence):
    done = in_process(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stderr.startswith("fedprox: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [["compare", "synthetic-1-1", *SMALL], ["demo", "--rounds", "1"]])
@pytest.mark.parametrize("out", ["afile", "afile/x"])
def test_a_file_in_the_place_of_a_folder_is_named_and_left_alone(in_process, tmp_path, command, out):
    (tmp_path / "afile").write_text("mine")
    done = in_process(*command, "--out", out, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == f"fedprox: run folder {out} cannot be written: Not a directory\n"
    assert [file.read_text() for file in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("command", [["compare"], ["sweep", "-g", "seed=0..1"]])
@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        (["-s", "devices.per_round=31"], "`devices.per_round` must be an integer from 1 to 30"),
        (["-s", "data.name=leaf", "-s", "data.path=nowhere"], "nowhere/train must hold LEAF files"),
    ],
)
def test_input_that_no_run_can_use_is_an_error_of_the_input(in_process, request, tmp_path, command, setting, sentence):
    if (command == ["compare"]) == ("data.name=leaf" in setting):
        request.getfixturevalue("runs_here")  # the other two cases are told by processes
    done = in_process(*command, "synthetic-1-1", "-s", "rounds=1", *setting, "--out", "here", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"fedprox: {sentence}")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_compare_runs_every_method_and_seed_on_the_same_draws(tmp_path):
    arguments = ["-m", "fedavg", "-m", "fedprox:mu=1", "--seeds", 2, "-s", "devices.stragglers=0.5", "--out", "both"]
    done = fedprox("compare", "synthetic-1-1", *SMALL, *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "fedprox (mu=1)" in done.stdout
    assert (tmp_path / "both" / "comparison.png").read_bytes().startswith(b"\x89PNG")
    rows = json.loads((tmp_path / "both" / "table.json").read_text())
    assert [row["method"] for row in rows] == ["fedavg", "fedprox (mu=1)"]
    assert all(row["seeds"] == 2 and row["train_loss_deviation"] > 0 for row in rows)
    for seed in (0, 1):
        drawn = []
        for name in ("fedavg", "fedprox-mu=1"):
            text = (tmp_path / "both" / name / f"seed-{seed}" / "devices.jsonl").read_text()
            drawn.append([(row["device"], row["budget"]) for row in map(json.loads, text.splitlines())])
        assert drawn[0] == drawn[1]


def test_demo_shows_fedprox_ahead_of_fedavg(tmp_path):
    done = fedprox("demo", "--rounds", 40, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    table = {row["method"]: row for row in json.loads(done.stdout)["table"]}
    assert table["fedprox (mu=1)"]["test_accuracy"] > table["fedavg"]["test_accuracy"]
    assert table["fedprox (mu=1)"]["train_loss"] < table["fedprox (mu=0)"]["train_loss"] < table["fedavg"]["train_loss"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run_after_its_round(tmp_path, number, code):
    command = [sys.executable, "-m", "fedprox", "run", "synthetic-1-1", "-s", "rounds=100000", "--out", "run"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "run" / "metrics.jsonl"
    until = time.monotonic() + 120
    while not (metrics.exists() and metrics.read_text().count("\n") > 3):
        assert time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(number)
    out, error = process.communicate(timeout=60)
    assert process.returncode == code, error
    assert "stopped after" in out
    assert error.splitlines()[-1] == "fedprox: interrupted; the same command with --out run --resume continues"
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["ended"] == "stopped"
    assert metrics.read_text().count("\n") == summary["rounds"] + 1


def test_help_needs_none_of_the_heavy_libraries(tmp_path):
    code = (
        "import sys; sys.argv = ['fedprox', '--help']\n"
        "import fedprox.cli\n"
        "try: fedprox.cli.main()\n"
        "except SystemExit: pass\n"
        "print([name for name in ('jax', 'numpy', 'pydantic', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip().endswith("[]")
    assert "compare" in done.stdout


def test_no_colour_codes_where_there_is_no_terminal(tmp_path):
    done = fedprox("--help", cwd=tmp_path, env={**os.environ, "TERM": "xterm-256color"})
    assert "\x1b[" not in done.stdout
    version = fedprox("--version", cwd=tmp_path)
    assert version.stdout.startswith("fedprox 0.")
