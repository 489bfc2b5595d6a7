"""What comes of runs on the clock: curves over seconds and bytes, the report on whom they reached, calibration."""

import json
import math
import tomllib
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fedprox
from fedprox import theory
from fedprox.cli import app
from fedprox.config import Config
from fedprox.engines.calibration import Speed, calibrated, measure_speed
from fedprox.experiments.compare import Comparison, check_axis
from fedprox.participation.clock import read_profile
from fedprox.report import write_report
from fedprox.report.figures import axis_figures
from fedprox.report.plot import curves
from fedprox.report.reached_devices import chance, count_reached
from fedprox.report.reached_devices_section import reach_figure, reach_sentences, reached
from fedprox.runs.curve_axis import AXES, BYTES, ROUNDS, SECONDS, common_loss, find_axis, first_at, on_axis, value_at
from fedprox.runs.history import History
from fedprox.runs.reader import find_runs
from fedprox.runs.seed_groups import group_runs


def history(seconds, losses, accuracies=None):
    accuracies = accuracies or [None] * len(losses)
    columns = zip(seconds, losses, accuracies, strict=True)
    return History(
        {"round": t, "simulated_seconds": s, "bytes": 10 * t, "train_loss": loss, "test_accuracy": accuracy}
        for t, (s, loss, accuracy) in enumerate(columns)
    )


FAST, SLOW = history([0.0, 1.0, 2.0], [3.0, 2.0, 1.0]), history([0.0, 4.0, 9.0], [3.0, 1.5, 0.5], [0.1, 0.2, 0.3])


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


# axes


def test_a_curve_is_a_staircase():
    values = [value_at(SLOW, SECONDS, x, "train_loss") for x in (0, 3.9, 4.0, 8, 100)]
    assert values == [3.0, 3.0, 1.5, 1.5, 0.5]
    wasting = History({**row, "wasted_seconds": 2.0 * row["simulated_seconds"]} for row in SLOW)
    assert [first_at(wasting, axis, 1.5) for axis in AXES] == [1.0, 4.0, 10.0, 8.0]
    assert first_at(FAST, SECONDS, 0.9) is None


def test_runs_are_put_on_one_axis_as_far_as_the_shortest_goes():
    x, values = on_axis([FAST, SLOW], SECONDS, "train_loss")
    np.testing.assert_array_equal(x, [0, 1, 2])
    np.testing.assert_array_equal(values, [[3, 2, 1], [3, 3, 3]])
    x, values = on_axis([FAST, SLOW], ROUNDS, "train_loss")
    np.testing.assert_array_equal(values, [[3, 2, 1], [3, 1.5, 0.5]])


def test_the_loss_that_all_reach():
    assert common_loss([FAST, SLOW]) == 1.0
    assert common_loss([FAST, history([0, 1], [3.0, None])]) is None
    assert find_axis("bytes") is BYTES
    with pytest.raises(fedprox.FedProxError, match=r"`--x` must be one of rounds, seconds, bytes, wasted; got 'tme'"):
        find_axis("tme")


def test_a_comparison_at_equal_time():
    along = Comparison({"fast": [FAST], "slow": [SLOW]}, {}).along(SECONDS)
    assert (along["end"], along["loss"]) == (2.0, 1.0)
    assert along["rows"] == [
        {"method": "fast", "train_loss": 1.0, "test_accuracy": None, "reached": 2.0},
        {"method": "slow", "train_loss": 3.0, "test_accuracy": 0.1, "reached": 9.0},
    ]
    both = Comparison({"both": [FAST, SLOW]}, {}).along(BYTES)
    assert both["rows"][0] == {"method": "both", "train_loss": 0.75, "test_accuracy": None, "reached": 20.0}


def test_the_picture_is_drawn_over_the_axis():
    figure = curves({"slow": [SLOW]}, axis=SECONDS)
    assert [axes.get_xlabel() for axes in figure.axes] == ["simulated seconds"] * 2
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_xdata(), [0, 4, 9])


def test_seconds_need_the_clock():
    clock = {"systems": {"model": "clock"}}
    check_axis(clock, ["fedavg", "fedprox:mu=1"], SECONDS)
    check_axis({}, ["fedavg"], BYTES)
    for settings, method in (({}, "fedavg"), (clock, "fedavg:systems.model=stragglers")):
        with pytest.raises(fedprox.FedProxError, match=r"`--x seconds` must be used with systems.model = 'clock'"):
            check_axis(settings, ["fedprox:systems.model=clock", method], SECONDS)


@pytest.mark.usefixtures("runs_here")
def test_compare_over_seconds(tmp_path):
    settings = ["-s", "rounds=3", "-s", "solver.epochs=2", "-m", "fedavg", "-m", "scaffold"]
    done = invoke("compare", "phones", *settings, "--x", "seconds", "--json", "--out", tmp_path / "c")
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["along"]["x"] == "seconds"
    assert [row["method"] for row in answer["along"]["rows"]] == ["fedavg", "scaffold"]
    assert Path(answer["picture"]).read_bytes().startswith(b"\x89PNG")
    refused = invoke("compare", "synthetic-1-1", "--x", "seconds", "--out", tmp_path / "d")
    assert refused.exit_code == 2
    assert not (tmp_path / "d").exists()


@pytest.mark.usefixtures("runs_here")
def test_compare_over_bytes_shows_what_a_byte_buys(tmp_path):
    settings = ["-s", "rounds=2", "-s", "solver.epochs=1", "-m", "fedavg", "-m", "scaffold", "--out", tmp_path / "c"]
    done = invoke("compare", "synthetic-1-1", *settings, "--x", "bytes")
    assert done.exit_code == 0, done.output
    assert "after 97,600 bytes" in done.output  # two rounds of FedAvg: 10 devices, 2,440 bytes down and up
    assert "bytes to loss" in done.output


# the report


def test_what_chance_alone_gives():
    for draws, q in ((1, 0.3), (10, 0.25), (7, 0.99), (60, 1 / 30)):
        counts = np.arange(draws + 1)
        pmf = np.array([math.comb(draws, k) * q**k * (1 - q) ** (draws - k) for k in counts])
        assert chance(draws, q) == pytest.approx(float(pmf @ np.abs(counts - draws * q)))
    assert chance(5, 0.0) == chance(5, 1.0) == 0.0


def write_run(path, rows, summary, **settings):
    path.mkdir(parents=True)
    config = Config.from_dict({"rounds": len(rows), "systems": {"model": "clock"}, **settings})
    (path / "config.toml").write_text(config.to_toml())
    (path / "metrics.jsonl").write_text(
        "".join(
            json.dumps({**row, "train_accuracy": 0.5, "mu": 0.0, "seconds": 1.0}) + "\n"
            for row in history([0.0, *range(1, len(rows) + 1)], [2.0, *[1.0] * len(rows)])
        )
    )
    (path / "devices.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = {"ended": "finished", "rounds": len(rows), "diverged_round": None, "seconds": 1.0, **summary}
    (path / "summary.json").write_text(json.dumps(result))
    return fedprox.load_run(path)


def round_of(number, devices, straggler, kept, weight, **more):
    return {
        "round": number,
        "solve_seconds": 0.1,
        "device": devices,
        "samples": [10 * (device + 1) for device in devices],
        "draws": [1] * len(devices),
        "straggler": straggler,
        "kept": kept,
        "weight": weight,
        "epochs": [1.0] * len(devices),
        "budget": [1] * len(devices),
        "steps": [1] * len(devices),
        "class": ["fast" if device < 2 else "slow" for device in devices],
        "samples_per_second": [100.0 if device < 2 else 10.0 for device in devices],
        **more,
    }


ROWS = [
    round_of(1, [0, 2], [False, True], [True, False], [1.0, 0.0]),
    round_of(2, [2, 1], [True, False], [True, True], [0.6, 0.4]),
    round_of(3, [0, 1], [False, False], [True, False], [1.0, 0.0], failed=[False, True]),
]
SUMMARY = {"devices": 4, "train_samples": 100}  # device 3, with 40 samples, was never asked


def test_who_was_reached_counted_by_hand(tmp_path):
    reach = count_reached(write_run(tmp_path / "run", ROWS, SUMMARY))
    assert reach.device.tolist() == [0, 1, 2]
    assert reach.asked.tolist() == [2, 2, 2]
    assert reach.finished.tolist() == [2, 1, 0]
    assert reach.cut_off.tolist() == [0, 1, 2]
    assert reach.merged.tolist() == [2, 1, 1]
    np.testing.assert_allclose(reach.mass, [0.1, 0.2, 0.3])
    np.testing.assert_allclose(reach.weight, [2 / 3, 0.4 / 3, 0.2])
    assert reach.asked_lean.distance == pytest.approx(0.25)  # a third each instead of a quarter
    assert reach.asked_lean.by_chance == pytest.approx(4 * chance(3, 0.5) / 6 / 2)
    assert reach.merged_lean.distance == pytest.approx((1 / 4 + 1 / 4) / 2)
    fast, slow = reach.classes()
    assert (fast["class"], fast["devices"], fast["asked"], fast["finished"]) == ("fast", 2, 4, 0.75)
    assert (slow["merged"], slow["weight"], slow["mass"]) == (0.5, pytest.approx(0.2), pytest.approx(0.3))
    assert reach.speed_correlation() == pytest.approx(np.corrcoef(np.log([100, 100, 10]), [1, 0.5, 0])[0, 1])
    sentences = reach_sentences(reach)
    assert sentences[0] == "1 of 4 devices, with 40.0% of the samples, were never asked."
    assert "The asked devices are 25.0% away" in sentences[2]
    assert sentences[4].startswith("Faster devices finished more often")


def test_with_draws_by_p_k_the_target_is_p_k(tmp_path):
    run = write_run(tmp_path / "run", ROWS, SUMMARY, devices={"sampling": "proportional"})
    lean = count_reached(run).asked_lean
    assert lean.distance == pytest.approx((abs(1 / 3 - 0.1) + abs(1 / 3 - 0.2) + abs(1 / 3 - 0.3) + 0.4) / 2)
    assert lean.by_chance == pytest.approx(sum(chance(6, q) for q in (0.1, 0.2, 0.3, 0.4)) / 6 / 2)


def test_unbiased_sampling_is_as_far_away_as_chance_says(tmp_path):
    random = np.random.default_rng(0)
    distances, expected = [], 0.0
    for attempt in range(30):
        rows = []
        for number in range(1, 41):
            devices = random.choice(20, 5, replace=False).tolist()
            rows.append(round_of(number, devices, [False] * 5, [True] * 5, [0.2] * 5))
        reach = count_reached(write_run(tmp_path / str(attempt), rows, {"devices": 20, "train_samples": 2100}))
        distances.append(reach.asked_lean.distance)
        expected = reach.asked_lean.by_chance
        assert reach.speed_correlation() is None  # everybody finished
        assert reach_sentences(reach)[0] == "Every device was asked at least once."
    assert np.mean(distances) == pytest.approx(expected, rel=0.1)


def test_the_page_has_the_section_only_for_runs_on_the_clock(tmp_path):
    write_run(tmp_path / "on" / "a", ROWS, SUMMARY)
    page = write_report([tmp_path / "on"], tmp_path / "on.html").read_text()
    assert "Who was reached" in page
    assert "<td>slow</td>" in page
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert {"reach", "train_loss_over_seconds"} <= {figure["name"] for figure in data["figures"]}
    fedprox.train({"rounds": 1, "solver": {"epochs": 1}}, out=tmp_path / "off")
    assert "Who was reached" not in write_report([tmp_path / "off"], tmp_path / "off.html").read_text()


def test_the_figures_hold_the_numbers(tmp_path):
    write_run(tmp_path / "a", ROWS, SUMMARY)
    write_run(tmp_path / "b", ROWS[:2], SUMMARY, method={"name": "fedavg"})
    groups = group_runs(find_runs([tmp_path / "a", tmp_path / "b"]))
    names = [figure["name"] for figure in axis_figures(groups)]
    assert names == ["train_loss_over_seconds", "train_loss_over_bytes"]  # there is no test accuracy
    assert axis_figures(groups)[0]["data"][0]["x"] == [0.0, 1.0, 2.0, 3.0]
    diagonal, points, _ = reach_figure(reached(groups))["data"]
    assert diagonal["name"] == "no bias"
    assert points["customdata"][2] == [2, 2, 0, 2, "slow"]
    assert points["x"] == [0.1, 0.2, 0.3]


def test_a_real_run_is_reported(tmp_path):
    settings = {"rounds": 6, "solver": {"epochs": 3}, "systems": {"model": "clock", "deadline": "q0.5"}}
    fedprox.train({**settings, "method": {"name": "fedavg"}}, out=tmp_path / "run")
    reach = count_reached(fedprox.load_run(tmp_path / "run"))
    assert reach.asked.sum() == 60
    assert reach.finished.sum() == reach.merged.sum() == 30
    assert reach.weight.sum() == pytest.approx(1)
    assert "Who was reached" in write_report([tmp_path / "run"], tmp_path / "report.html").read_text()


# calibration


def test_calibration_times_real_work():
    def speed(model):
        return measure_speed({"model": {"name": model}}, seconds=0.02).samples_per_second

    assert speed("softmax_regression") > speed("mlp") > 0  # 610 parameters against some ten thousand


def test_a_calibrated_profile_has_the_measured_speed():
    found = calibrated(read_profile("phones"), Speed(1234.567, 1000.0, "mlp", "sgd", 10))
    assert found.samples_per_second == 1235.0
    assert found.classes == read_profile("phones").classes


def test_calibrate_writes_a_profile_that_a_run_takes(tmp_path):
    out = tmp_path / "mine.toml"
    done = invoke("calibrate", "synthetic-1-1", "-s", "solver.epochs=1", "--profile", "phones", "--out", out)
    assert done.exit_code == 0, done.output
    assert "samples a second (softmax_regression, sgd, batches of 10)" in done.output
    written = tomllib.loads(out.read_text())
    assert written["samples_per_second"] > 1000
    assert len(written["classes"]) == 3
    config = {"rounds": 1, "solver": {"epochs": 1}, "systems": {"model": "clock", "profile": str(out)}}
    assert fedprox.train(config).summary["simulated_seconds"] > 0
    again = invoke("calibrate", "synthetic-1-1", "--out", out)
    assert again.exit_code == 2
    assert "`--out` must be a new file" in again.output
    unknown = invoke("calibrate", "synthetic-1-1", "--profile", "fones", "--out", tmp_path / "x.toml")
    assert unknown.exit_code == 2
    assert not (tmp_path / "x.toml").exists()


# theory


def test_the_theorems_do_not_cover_devices_that_are_away(tmp_path):
    settings = {"rounds": 2, "solver": {"epochs": 1}, "devices": {"sampling": "proportional"}}
    fedprox.train({**settings, "systems": {"model": "clock"}}, out=tmp_path / "away")
    assert any(row["away"] for row in fedprox.load_run(tmp_path / "away").devices)
    with pytest.raises(theory.NotCoveredError, match="every device must be available"):
        theory.certify(tmp_path / "away")
    fedprox.train({**settings, "systems": {"model": "clock", "profile": "equal"}}, out=tmp_path / "equal")
    with pytest.raises(theory.NotCoveredError, match=r"`systems.model` is 'clock'"):
        theory.certify(tmp_path / "equal", resample=30)
