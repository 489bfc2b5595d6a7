"""Trackers, tested against the files that they write."""

import contextlib
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fedprox
from fedprox.cli import app
from fedprox.training.trackers import build

CONFIG = "rounds = {rounds}\n[solver]\nepochs = 1\n[checkpoint]\nevery = 1\n[measure]\nevery = 2\n"


def train(tmp_path: Path, tracker: str, rounds: int, *more: str) -> Path:
    config = tmp_path / "run.toml"
    config.write_text(CONFIG.format(rounds=rounds))
    out = tmp_path / "runs" / "one"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what these packages warn of is theirs
        result = CliRunner().invoke(app, ["run", str(config), "--out", str(out), "--track", tracker, *more])
    assert result.exit_code == 0, result.output
    return out


def test_tensorboard_event_files_hold_the_metrics_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(tmp_path, "tensorboard", 4)
    out = train(tmp_path, "tensorboard", 6, "--resume")
    events = EventAccumulator(str(out / "tensorboard")).Reload()
    history = fedprox.load_run(out).history
    assert [event.step for event in events.Scalars("train_loss")] == history.column("round") == [0, 2, 4, 6]
    losses = [event.value for event in events.Scalars("train_loss")]
    assert losses == pytest.approx(history.column("train_loss"), rel=1e-6)
    assert {"test_accuracy", "mu", "dissimilarity"} <= set(events.Tags()["scalars"])


def test_mlflow_store_holds_config_and_metrics_of_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("mlflow", reason="mlflow is not installed")
        from mlflow.tracking import MlflowClient
    train(tmp_path, "mlflow", 4)
    out = train(tmp_path, "mlflow", 6, "--resume")
    client = MlflowClient((tmp_path / "runs" / "mlruns").as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("fedprox").experiment_id])
    assert run.data.params["solver.epochs"] == "1"
    assert run.info.status == "FINISHED"
    assert run.data.tags["fedprox.ended"] == "finished"
    history = fedprox.load_run(out).history
    written = client.get_metric_history(run.info.run_id, "train_loss")
    assert [metric.step for metric in written] == history.column("round")
    assert [metric.value for metric in written] == history.column("train_loss")


def test_wandb_offline_file_holds_the_metrics(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("wandb", reason="wandb is not installed")
        from wandb.proto.wandb_internal_pb2 import Record
    out = train(tmp_path, "wandb", 2)
    (file,) = out.glob("wandb/offline-run-*/*.wandb")
    end, records = time.monotonic() + 30, []
    while not any(record.HasField("exit") for record in records):
        assert time.monotonic() < end  # wandb writes from a process of its own, which may be a little behind
        time.sleep(0.1)
        records = [Record.FromString(content) for content in log_records(file.read_bytes())]
    losses = {}
    for record in records:
        items = {item.key or item.nested_key[0]: float(item.value_json) for item in record.history.item}
        if "train_loss" in items:
            losses[int(items["_step"])] = items["train_loss"]
    history = fedprox.load_run(out).history
    assert losses == dict(zip(history.column("round"), history.column("train_loss"), strict=True))


def log_records(data: bytes) -> list[bytes]:
    """Read LevelDB's log format: blocks of 32 KiB with pieces of records, each after 7 bytes of heading."""
    position, record, records = 7, b"", []
    while position < len(data):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        size, kind = int.from_bytes(data[position + 4 : position + 6], "little"), data[position + 6]
        if position + 7 + size > len(data):
            break  # this piece is still being written
        record += data[position + 7 : position + 7 + size]
        position += 7 + size
        if kind in (1, 4):  # a whole record, or the last piece of one
            records.append(record)
            record = b""
    return records


@pytest.mark.parametrize(("fails", "ended"), [(True, "failed"), (False, "finished")])
def test_trackers_are_closed_however_a_run_ends(fails, ended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    class Tracker:
        def __call__(self, progress: fedprox.Progress) -> None:
            pass

        def close(self, summary: Any) -> None:
            closed.append(summary["ended"])

    def callback(progress: fedprox.Progress) -> None:
        if fails and progress.round == 1:
            raise ZeroDivisionError

    monkeypatch.setattr("fedprox.training.followers.build", lambda name, folder, config: Tracker())
    config = {"rounds": 2, "solver": {"epochs": 1}}
    with pytest.raises(ZeroDivisionError) if fails else contextlib.nullcontext():
        fedprox.train(config, out=tmp_path / "run", track=["one", "two"], callbacks=[callback])
    assert closed == [ended] * 2


def test_an_unknown_tracker_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(fedprox.FedProxError, match=r"got 'tensorbord'; did you mean `tensorboard`\?"):
        build("tensorbord", tmp_path, fedprox.Config())


def test_a_tracker_whose_package_is_missing_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.delitem(sys.modules, "fedprox.training.trackers.wandb_tracker", raising=False)
    with pytest.raises(fedprox.FedProxError, match=r"pip install 'fedprox\[wandb\]'"):
        build("wandb", tmp_path, fedprox.Config())
