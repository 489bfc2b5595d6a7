"""Comforts in Python: progress, trackers, pictures, reports and short texts."""

import sys
import types
from pathlib import Path

import pytest

import fedprox
from fedprox.experiments.compare import Comparison
from fedprox.report import progress
from fedprox.report.progress import NotebookBars, open_bars
from fedprox.report.terminal import RunBars

SMALL = {"rounds": 2, "solver": {"epochs": 1}, "data": {"devices": 12}}


@pytest.fixture(scope="module")
def result() -> fedprox.Result:
    return fedprox.train(SMALL)


def test_texts_are_short(result: fedprox.Result, tmp_path: Path) -> None:
    last = result.history[-1]
    words = f"finished, round 2: train loss {last['train_loss']:.4f}, test accuracy {100 * last['test_accuracy']:.1f}%"
    assert repr(result) == f"Result({words})"
    saved = fedprox.load_run(fedprox.train(SMALL, out=tmp_path / "run").path)
    assert repr(saved) == f"SavedRun({tmp_path / 'run'}: {words})"
    histories = {"fedavg": [result.history, result.history]}
    compared = Comparison(histories, {"fedavg": [result.summary, result.summary]})
    assert repr(compared) == f"Comparison(2 seeds, test accuracy: fedavg {100 * last['test_accuracy']:.1f}%)"


def test_a_column_that_is_not_there_names_the_nearest(result: fedprox.Result) -> None:
    with pytest.raises(fedprox.FedProxError, match=r"no column `train_los`; did you mean `train_loss`\?"):
        result.history.column("train_los")
    assert fedprox.History().column("anything") == []


def test_a_folder_that_is_no_run_says_where_runs_are(tmp_path: Path) -> None:
    fedprox.train(SMALL, out=tmp_path / "swept" / "mu=1")
    with pytest.raises(fedprox.FedProxError, match=r"is not a run folder; it holds run folders, such as .*mu=1"):
        fedprox.load_run(tmp_path / "swept")
    with pytest.raises(fedprox.FedProxError, match=r"run folder .*none does not exist"):
        fedprox.load_run(tmp_path / "none")


def test_a_row_is_chosen_by_its_number(result: fedprox.Result) -> None:
    with pytest.raises(fedprox.FedProxError, match=r"by its number; got 'train_loss': use `.column\('train_loss'\)`"):
        result.history["train_loss"]  # type: ignore[call-overload]


def test_a_result_plots_itself(result: fedprox.Result, tmp_path: Path) -> None:
    picture = result.plot(tmp_path / "run.pdf")
    assert (tmp_path / "run.pdf").read_bytes().startswith(b"%PDF")
    assert picture._repr_png_().startswith(b"\x89PNG")
    (line,) = picture.axes[0].lines
    assert line.get_ydata().tolist() == result.history.column("train_loss")  # type: ignore[union-attr]


def test_files_that_cannot_be_pictures_or_reports(
    result: fedprox.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(fedprox.FedProxError, match=r"picture x\.foo must end in \.png, .*; got '\.foo'"):
        result.plot("x.foo")
    for path in (".", tmp_path):
        with pytest.raises(fedprox.FedProxError, match="must be a file; it is a folder"):
            result.plot(path)
        with pytest.raises(fedprox.FedProxError, match="cannot be written: Is a directory"):
            result.report(path)
    result.plot("curve")
    assert {file.name for file in tmp_path.iterdir()} == {"curve.png"}


def test_a_result_writes_a_report_with_or_without_a_folder(result: fedprox.Result, tmp_path: Path) -> None:
    page = result.report(tmp_path / "memory.html").read_text()
    assert "K = 10 per round; E = 1 epochs" in page
    saved = fedprox.train(SMALL, out=tmp_path / "run")
    text = saved.report(tmp_path / "saved.html", title="One run").read_text()
    assert "<title>One run</title>" in text
    assert "N = 12 devices" in text  # from the evaluation of each device, which the folder has


def test_trackers_follow_a_run_from_python(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    fedprox.train(SMALL, out=tmp_path / "run", track="tensorboard")
    assert list((tmp_path / "run" / "tensorboard").iterdir())
    with pytest.raises(fedprox.FedProxError, match="`track` must be used with `out`"):
        fedprox.train(SMALL, track=["tensorboard"])
    with pytest.raises(fedprox.FedProxError, match=r"did you mean `wandb`\?"):
        fedprox.train(SMALL, out=tmp_path / "other", track="wanb")
    assert not (tmp_path / "other").exists()


def test_progress_is_silent_where_no_one_looks(capsys: pytest.CaptureFixture[str]) -> None:
    fedprox.train(SMALL, progress=True)
    assert capsys.readouterr() == ("", "")
    assert isinstance(open_bars(), RunBars)


def test_progress_in_a_notebook_is_one_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, content: str) -> None:
            shown.append(content)

    def display(content: str, *, display_id: bool) -> Handle:
        shown.append(content)
        return Handle()

    shell = types.SimpleNamespace(kernel=object())
    module = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", module)
    drawing = types.SimpleNamespace(HTML=lambda text: text, display=display)
    monkeypatch.setitem(sys.modules, "IPython.display", drawing)
    assert progress.in_notebook()
    assert isinstance(open_bars(), NotebookBars)
    fedprox.train(SMALL, progress=True)
    assert len(shown) == 3  # rounds 0, 1 and 2
    assert shown[-1].startswith('<div>fedprox <progress value="2" max="2"></progress> round 2 of 2, loss ')
