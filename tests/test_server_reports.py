"""What a report says of time: the time line, time to a target accuracy, and curves over lost work."""

from pathlib import Path

import numpy as np

import fedprox
from conftest import population_of
from fedprox.methods.merging import ReplySums, StackedReplies
from fedprox.report import report
from fedprox.report.figures import axis_figures
from fedprox.report.target_section import common_target, target_rows, target_section
from fedprox.report.timeline import timeline_figures
from fedprox.runs.curve_axis import WASTED, find_axis
from fedprox.runs.history import History
from fedprox.runs.reader import MemoryRun
from fedprox.runs.seed_groups import group_runs

SOLVER = {"epochs": 2, "batch_size": 4, "learning_rate": 0.1}


def saved(history, devices=(), name="fedavg", seed=0):
    config = fedprox.Config.of({"seed": seed, "method": {"name": name}, "systems": {"model": "clock"}})
    return MemoryRun(Path("not saved"), config, History(history), {}, History(devices))


def row(round, accuracy, seconds, wasted=0.0):
    values = {"round": round, "train_loss": 1.0, "test_accuracy": accuracy, "simulated_seconds": seconds}
    return {**values, "bytes": 1000 * round, "wasted_seconds": wasted}


def test_time_to_a_target_worked_by_hand():
    one = saved([row(0, 0.9, 0.0), row(1, 0.2, 5.0), row(2, 0.613, 7.0, 2.0)])
    other = saved([row(0, 0.1, 0.0), row(1, 0.7, 9.0, 4.0), row(2, None, 12.0)], name="fedprox")
    groups = group_runs([one, other])
    assert common_target(groups) == 0.61  # the start does not count
    rows = {each.label: each[1:] for each in target_rows(groups, 0.61)}
    assert list(rows.values()) == [(7.0, 2000.0, 2.0, 2.0), (9.0, 1000.0, 4.0, 1.0)]
    assert "Time to 61% test accuracy" in target_section(groups)


def test_without_a_clock_or_a_common_accuracy_there_is_no_target():
    never = [saved([row(0, None, 0.0), row(1, None, 5.0)])]
    assert common_target(group_runs(never)) is None
    assert target_section(group_runs(never)) == ""
    bare = saved([{name: value for name, value in row(1, 0.5, 1.0).items() if name != "simulated_seconds"}] * 2)
    assert target_section(group_runs([bare])) == ""


def test_the_time_line_shows_who_worked_when_on_which_version():
    devices = [
        {
            "round": 3,
            "start": 10.0,
            "device": [4, 7],
            "seconds": [2.0, 6.0],
            "asked_at": [9.0, 5.0],
            "version": [2, 0],
            "staleness": [0, 2],
            "kept": [True, False],
        }
    ]
    (figure,) = timeline_figures(group_runs([saved([row(0, 0.1, 0.0)], devices)]))
    merged, lost, ends = figure["data"]
    assert (merged["name"], merged["x"], merged["y"]) == ("merged", [9.0, 11.0, None], [4, 4, None])
    assert (lost["name"], lost["x"], lost["y"]) == ("lost", [5.0, 11.0, None], [7, 7, None])
    assert ends["marker"]["color"] == [2, 0]
    assert ends["text"] == ["device 4, version 2, staleness 0", "device 7, version 0, not merged"]


def test_a_synchronous_round_is_on_the_time_line_too():
    devices = [{"round": 3, "start": 10.0, "device": [4], "seconds": [2.0], "kept": [True]}]
    (figure,) = timeline_figures(group_runs([saved([row(0, 0.1, 0.0)], devices)]))
    assert figure["data"][0]["x"] == [10.0, 12.0, None]
    assert figure["data"][-1]["marker"]["color"] == [2]
    assert timeline_figures(group_runs([saved([row(0, 0.1, 0.0)], [{"round": 1, "device": [1]}])])) == []


def test_curves_over_lost_work():
    assert find_axis("wasted") == WASTED
    none = group_runs([saved([row(0, 0.1, 0.0), row(1, 0.2, 3.0)])])
    some = group_runs([saved([row(0, 0.1, 0.0), row(1, 0.2, 3.0, 1.5)])])
    assert not any(figure["name"].endswith("wasted") for figure in axis_figures(none))
    (figure,) = [figure for figure in axis_figures(some) if figure["name"] == "test_accuracy_over_wasted"]
    assert figure["data"][0]["x"] == [0.0, 1.5]


def test_the_report_of_a_real_run_has_all_of_it(tmp_path):
    systems = {"model": "clock", "server": "buffered", "concurrency": 5, "buffer": 2, "deadline": 0.5}
    settings = {"rounds": 8, "solver": SOLVER, "devices": {"per_round": 2}, "method": {"name": "fedavg"}}
    fedprox.train({**settings, "systems": systems}, population=population_of([9, 20, 4, 31, 12], test=4), out=tmp_path)
    groups = group_runs([fedprox.load_run(tmp_path)])
    page = report(groups, "servers")
    assert "Who worked when, on which version" in page
    assert "plot-staleness_mean" in page


def test_replies_added_up_as_arrays_have_the_bits_of_those_added_up_one_by_one():
    random = np.random.default_rng(0)
    positions, count = np.array([0, 2, 3, 4, 6, 7, 8]), 11
    values = [
        {"model": random.normal(size=(3, 2)).astype(np.float32), "norm2": np.float64(random.normal())}
        for _ in positions
    ]
    shift = {"model": random.normal(size=(3, 2)).astype(np.float32), "norm2": np.float64(0)}
    weights = random.random(len(positions))
    stacked = StackedReplies(values, positions, count)
    stacked.shift(np.array([1, 4]), shift)
    found = stacked.total(weights)
    sums = ReplySums(count)
    for place, (position, value) in enumerate(zip(positions.tolist(), values, strict=True)):
        own = {name: value[name] + shift[name] for name in value} if place in (1, 4) else value
        weighted = {name: leaf * np.asarray(leaf).dtype.type(weights[place]) for name, leaf in own.items()}
        sums.add(position, weighted, ())
    expected, _ = sums.result()
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
