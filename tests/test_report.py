"""What a report says and draws, from run folders written by hand."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

import fedprox
from fedprox.config import Config
from fedprox.report import verdict, write_report
from fedprox.report.experiment_line import experiment_line
from fedprox.report.figures import curve_figures, fairness_figure, fairness_rows, time_figure
from fedprox.report.participation import participation
from fedprox.report.plot import curves
from fedprox.runs.history import History
from fedprox.runs.reader import find_runs, load_run, nested
from fedprox.runs.seed_groups import group_runs, labels


def write_run(path: Path, settings: dict, losses: list, accuracies: list, **summary: object) -> None:
    """Write a run folder with these losses and accuracies."""
    path.mkdir(parents=True)
    config = Config.from_dict({"rounds": len(losses) - 1, **settings})
    (path / "config.toml").write_text(config.to_toml())
    rows = [
        {"round": t, "train_loss": loss, "train_accuracy": 0.5, "test_accuracy": accuracy, "mu": 0.0, "seconds": t / 2}
        for t, (loss, accuracy) in enumerate(zip(losses, accuracies, strict=True))
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    who = {"device": [4, 2], "samples": [5, 6], "draws": [1, 1], "straggler": [False, True], "epochs": [20.0, 5.0]}
    work = {"budget": [40, 10], "steps": [40, 10], "kept": [True, True], "weight": [0.5, 0.5]}
    lines = [{"round": t, "solve_seconds": 0.1, **who, **work} for t in range(1, len(losses))]
    (path / "devices.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    if summary.pop("ended", True):
        result = {"ended": "finished", "rounds": len(losses) - 1, "diverged_round": None, "seconds": 1.0, **summary}
        (path / "summary.json").write_text(json.dumps(result))
        tests = [{"device": k, "test_accuracy": k / 20, "train_accuracy": 1.0} for k in range(20)]
        (path / "evaluation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in tests))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    fedavg, fedprox_ = {"method": {"name": "fedavg"}}, {"method": {"mu": 1.0}}
    write_run(tmp_path / "a" / "seed-2", fedavg | {"seed": 2}, [2.0, 4.0, None], [0.1, 0.4, 0.5], diverged_round=2)
    write_run(tmp_path / "a" / "seed-10", fedavg | {"seed": 10}, [2.0, 1.5, 1.0], [0.1, 0.6, 0.7])
    write_run(tmp_path / "b" / "seed-2", fedprox_ | {"seed": 2}, [2.0, 1.0, 0.5], [0.1, 0.5, 0.8])
    write_run(tmp_path / "b" / "seed-10", fedprox_ | {"seed": 10}, [2.0, 1.2, 0.7], [0.1, 0.5, 0.6])
    return tmp_path


def test_runs_that_differ_in_their_seed_alone_are_one_group(folder: Path) -> None:
    groups = group_runs(find_runs([folder]))
    assert [group.label for group in groups] == ["fedavg", "fedprox (mu=1)"]
    assert [run.seed for run in groups[0].runs] == [2, 10]
    band = groups[1].band("train_loss")
    assert band.rounds == [0, 1, 2]
    np.testing.assert_allclose(band.mean, [2.0, 1.1, 0.6])
    np.testing.assert_allclose(band.deviation, [0, math.sqrt(0.02), math.sqrt(0.02)])
    assert math.isnan(groups[0].band("train_loss").mean[2])  # a mean over the survivors alone would flatter
    assert groups[0].band("dissimilarity") is None


def test_two_runs_of_one_seed_are_kept_apart(folder: Path) -> None:
    write_run(folder / "again", {"method": {"mu": 1.0}, "seed": 2}, [2.0, 1.0, 0.4], [0.1, 0.5, 0.9])
    assert [group.label for group in group_runs(find_runs([folder / "b", folder / "again"]))] == [
        "fedprox (mu=1), b",
        "fedprox (mu=1), again",
    ]


def test_labels_name_what_differs() -> None:
    configs = [Config.from_dict({"solver": {"epochs": epochs}, "method": {"mu": 0.1}}) for epochs in (1, 20)]
    assert labels(configs) == ["fedprox (mu=0.1, solver.epochs=1)", "fedprox (mu=0.1, solver.epochs=20)"]


def test_settings_that_only_one_method_has_are_no_part_of_its_label() -> None:
    assert labels([Config.from_dict({"method": method}) for method in ({"name": "fedavg"}, {"mu": 1.0})]) == [
        "fedavg",
        "fedprox (mu=1)",
    ]
    steps = [{"mu": "adaptive", "mu_step": step} for step in (0.2, 0.1)]
    assert labels([Config.from_dict({"method": method}) for method in steps]) == [
        "fedprox (mu=adaptive, mu_step=0.2)",
        "fedprox (mu=adaptive, mu_step=0.1)",
    ]


def test_the_verdict_has_numbers(folder: Path) -> None:
    sentences = verdict(group_runs(find_runs([folder])))
    assert sentences == [
        "fedprox (mu=1) ends with the highest test accuracy, 70.0% ± 14.1: "
        "10.0 points ahead of fedavg (60.0% ± 14.1), in 1 of 2 seeds.",
        "fedprox (mu=1) also has the lowest training loss, 0.6000 ± 0.1414.",
        "fedavg diverged in 1 of 2 seeds, first at round 2.",
    ]


def test_the_verdict_on_one_run_and_on_one_that_goes_on(folder: Path, tmp_path: Path) -> None:
    assert verdict(group_runs(find_runs([folder / "b" / "seed-2"])))[0] == (
        "fedprox (mu=1): 80.0% test accuracy at round 2."
    )
    write_run(tmp_path / "c", {"rounds": 9}, [2.0, 1.0], [None, None], ended=False)
    assert verdict(group_runs(find_runs([tmp_path / "c"]))) == [
        "fedprox (mu=0): 1.0000 training loss at round 1.",
        "fedprox (mu=0) has not finished: 1 of 1 runs stand at round 1 of 9.",
    ]


def test_equal_numbers_are_called_a_tie(tmp_path: Path) -> None:
    for name, accuracy in (("one", 0.7001), ("two", 0.6999), ("three", 0.5)):
        write_run(tmp_path / name, {"method": {"mu": accuracy}}, [2.0, 1.0], [0.1, accuracy])
    assert verdict(group_runs(find_runs([tmp_path]))) == [
        "fedprox (mu=0.7001) and fedprox (mu=0.6999) end tied at the highest test accuracy, 70.0%: "
        "20.0 points ahead of fedprox (mu=0.5) (50.0%)."
    ]


def test_the_head_names_the_experiment(folder: Path) -> None:
    line = experiment_line(group_runs(find_runs([folder])))
    assert line == (
        "data: Synthetic(1, 1); N = 20 devices; K = 10 per round; E = 20 epochs; 0% stragglers; seeds 2, 10"
    )
    page = write_report([folder], folder / "report.html").read_text()
    assert line in page
    assert "Bands: one standard deviation" in page
    assert "simulated time" not in page


def test_axes_show_integer_rounds_and_end_at_zero_and_a_hundred_percent(folder: Path) -> None:
    figures = {figure["name"]: figure["layout"] for figure in curve_figures(group_runs(find_runs([folder])))}
    assert figures["train_loss"]["xaxis"]["dtick"] == 1
    assert figures["test_accuracy"]["yaxis"]["autorangeoptions"] == {"clipmin": 0, "clipmax": 1}
    histories = {
        name: [History([{"round": i, "train_loss": 1.0, "test_accuracy": 1.0} for i in range(4)])] * 2 for name in "ab"
    }
    picture = curves(histories)
    losses, accuracies = picture.axes
    assert accuracies.get_ylim()[1] == 1.0
    apart = [History([{"round": i, "train_loss": 1.0, "test_accuracy": end} for i in range(2)]) for end in (0.0, 0.3)]
    assert curves({"a": apart}).axes[1].get_ylim()[0] == 0.0  # the band begins below
    assert all(tick == int(tick) for tick in losses.get_xticks())
    assert len({line.get_linestyle() for line in losses.lines}) == 2  # they differ without colours too
    assert "bands: one standard deviation" in picture.get_supxlabel()


def test_when_nothing_is_finite_it_says_so(tmp_path: Path) -> None:
    write_run(tmp_path / "c", {}, [2.0, None], [None, None], diverged_round=1)
    assert verdict(group_runs(find_runs([tmp_path])))[0] == "No method ended with a finite loss."


def test_the_figures_hold_the_numbers(folder: Path) -> None:
    groups = group_runs(find_runs([folder]))
    figures = {figure["name"]: figure for figure in curve_figures(groups)}
    assert set(figures) == {"train_loss", "test_accuracy", "train_accuracy", "mu"}
    _, _, band, line = figures["train_loss"]["data"]
    assert (line["x"], line["y"], line["name"]) == ([0, 1, 2], [2.0, 1.1, 0.6], "fedprox (mu=1)")
    assert band["legendgroup"] == line["legendgroup"]
    assert time_figure(groups)["data"][0]["y"] == [0.1, 0.1]
    assert fairness_figure(groups)["data"][0]["y"][0] == 0.0


def test_fairness_counts_devices_by_hand(folder: Path) -> None:
    first = fairness_rows(group_runs(find_runs([folder / "a" / "seed-2"])))[0]
    assert first["devices"] == 20
    assert first["mean"] == pytest.approx(0.475)
    assert first["worst_tenth"] == pytest.approx(0.025)  # of 0.00 and 0.05
    assert first["variance"] == pytest.approx(np.var(np.arange(20) / 20))


def test_participation_lists_who_did_what(folder: Path) -> None:
    run = participation(group_runs(find_runs([folder / "a" / "seed-2"])))[0]
    assert run["round"] == [1, 1, 2, 2]
    assert run["device"] == [4, 2, 4, 2]
    assert run["work"] == [20.0, 5.0, 20.0, 5.0]
    assert run["fate"] == [0, 1, 0, 1]


def test_the_page_is_one_small_file_without_links(folder: Path) -> None:
    page = write_report([folder], folder / "out" / "report.html", title="a <b> & c").read_text()
    assert len(page) < 5_000_000
    own = page.split('<script type="application/octet-stream"')[0] + page.split("</script>")[-2]
    assert not re.search(r"""(src|href)\s*=|https?://|@import|url\(""", own)
    assert "<title>a &lt;b&gt; &amp; c</title>" in page
    assert "method.mu" in page
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert data["participation"][0]["label"] == "fedavg, seed 2"


def test_text_from_a_config_cannot_become_markup(tmp_path: Path) -> None:
    evil = "</script><img src=x onerror=alert(1)>.npz"
    settings = [{"data": {"name": "npz", "path": evil}}, {"data": {"name": "npz", "path": "fine.npz"}}]
    for index, each in enumerate(settings):
        write_run(tmp_path / str(index), each, [2.0, 1.0], [0.1, 0.2])
    page = write_report([tmp_path], tmp_path / "report.html").read_text()
    assert "<img" not in page


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        fedprox.FedProxError, match="is not a run folder and holds none; the folder of a new run can be read once"
    ):
        write_report([tmp_path], tmp_path / "report.html")
    write_run(tmp_path / "new", {}, [1.0, 1.0], [0.1, 0.1], ended=False)
    (tmp_path / "new" / "metrics.jsonl").write_text("")
    with pytest.raises(fedprox.FedProxError, match="holds no measured round yet"):
        write_report([tmp_path], tmp_path / "report.html")
    with pytest.raises(fedprox.FedProxError, match=r"run folder .*none does not exist"):
        write_report([tmp_path / "none"], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_load_run_reads_what_train_wrote(tmp_path: Path) -> None:
    result = fedprox.train({"rounds": 2, "model": {"name": "mlp"}, "solver": {"epochs": 1}}, out=tmp_path / "run")
    run = load_run(tmp_path / "run")
    assert list(run.history) == list(result.history)
    assert list(run.devices) == list(result.devices)
    assert run.summary["result"] == result.summary["result"]
    np.testing.assert_array_equal(run.params["hidden"]["weight"], result.params["hidden"]["weight"])
    assert run.config == Config.from_toml(tmp_path / "run" / "config.toml")
    assert len(run.evaluation) == 30
    shown = result._repr_html_()
    assert shown == run._repr_html_()
    assert shown.count("<svg") == 2
    assert "finished after 2 rounds" in shown
    with pytest.raises(fedprox.FedProxError, match="not a run folder"):
        load_run(tmp_path)


def test_nested_names() -> None:
    assert nested({"a.b.c": 1, "a.d": 2}) == {"a": {"b": {"c": 1}, "d": 2}}
