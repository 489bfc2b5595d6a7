"""Every table and figure at the smallest scale, from the command line; and nothing is run twice."""

import csv
import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from fedprox.cli import app
from fedprox.paper.claims import CLAIMS
from fedprox.paper.experiments import EXPERIMENTS, Curve
from fedprox.paper.results import Results
from fedprox.paper.results_page import results_page
from fedprox.paper.runs import Setting, config_hash
from fedprox.paper.scales import find_scale
from fedprox.runs.reader import load_run


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """`fedprox paper all --scale smoke` in a new folder, on a machine without any prepared data."""
    out = tmp_path_factory.mktemp("paper")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDPROX_DATA", str(out / "no-data"))
        yield out, invoke("all", out), Results(Setting(out, find_scale("smoke")))


def invoke(name, out, *more):
    result = CliRunner().invoke(app, ["paper", name, "--scale", "smoke", "--out", str(out), "--json", *more])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_every_figure_is_there_with_its_numbers_and_where_it_comes_from(everything):
    out, made, _ = everything
    assert made["runs"] == 158
    for name, experiment in EXPERIMENTS.items():
        assert (out / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        record = json.loads((out / f"{name}.json").read_text())
        assert {"commit", "date", "machine", "versions", "scale", "notes"} < set(record)
        for run in record["runs"]:
            assert config_hash(load_run(out / "runs" / run["folder"]).config) == run["config"]
        lines = (out / f"{name}.csv").read_text().splitlines()
        notes = [line for line in lines if line.startswith("# ")]
        assert any("2 rounds" in note for note in notes)
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
        panels = sum(len(row) for row in experiment.rows)
        assert len({(row["row"], row["panel"]) for row in rows}) == panels
        assert {row["round"] for row in rows} == {"0", "1", "2"}


def test_the_numbers_of_a_figure_are_means_over_seeds(everything):
    out, _, results = everything
    losses = [history.column("train_loss") for history in results.histories(Curve("synthetic-1-1", mu=1.0))]
    lines = (out / "figure2.csv").read_text().splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    found = [
        (float(row["mean"]), float(row["deviation"]))
        for row in rows
        if (row["panel"], row["measure"], row["curve"]) == ("Synthetic (1,1)", "train_loss", "FedProx (μ=1)")
    ]
    assert len(losses) == 2
    assert np.allclose([mean for mean, _ in found], np.mean(losses, axis=0), rtol=1e-4)
    assert np.allclose([deviation for _, deviation in found], np.std(losses, axis=0, ddof=1), rtol=1e-3, atol=1e-9)


def test_a_second_time_runs_nothing(everything):
    out, _, _ = everything
    before = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/summary.json")}
    again = invoke("figure3", out)
    assert again["runs"] == 0
    assert {path: path.stat().st_mtime_ns for path in out.glob("runs/*/summary.json")} == before
    listed = CliRunner().invoke(app, ["paper", "list", "--scale", "smoke", "--out", str(out), "--json"])
    assert {row["left"] for row in json.loads(listed.stdout)["experiments"]} == {0}


def test_the_page_is_written_again_from_run_folders(everything, tmp_path):
    out, made, results = everything
    text = (out / "results.md").read_text(encoding="utf-8")
    assert text == results_page(results)
    assert made["files"][-1] == str(out / "results.md")
    assert re.findall(r"^### (.+)$", text, re.MULTILINE) == list(CLAIMS)
    assert text.count("**Not tested at this scale**") == len(CLAIMS)  # a few rounds are no result
    for link in re.findall(r"\]\((figure[^)]+)\)", text):
        assert (out / link).exists()


def test_the_page_may_lie_elsewhere_than_the_figures(everything, tmp_path):
    out, _, _ = everything
    page = tmp_path / "docs" / "results.md"
    text = results_page(Results(Setting(out, find_scale("smoke"))), "paper")
    assert "](paper/figure1.png)" in text
    made = invoke("table1", out, "--figures", str(tmp_path / "docs" / "paper"), "--page", str(page))
    assert made["files"] == [str(tmp_path / "docs" / "paper" / name) for name in ("table1.csv", "table1.json")]
    assert "not prepared" not in (tmp_path / "docs" / "paper" / "table1.csv").read_text()
    assert not page.exists()  # the page belongs to all of them together


def test_curves_with_a_missing_seed_are_not_compared(everything):
    out, _, results = everything
    three = Results(Setting(out, find_scale("smoke"), 3))
    assert len(three.runs(Curve("synthetic-1-1"))) == 2
    assert three.histories(Curve("synthetic-1-1")) == []
    assert len(results.histories(Curve("synthetic-1-1"))) == 2


def test_what_is_not_run_is_drawn_as_such(tmp_path):
    made = invoke("figure11", tmp_path, "--only-draw")
    assert made["runs"] == 0
    record = json.loads((tmp_path / "figure11.json").read_text())
    assert record["runs"] == []
    assert record["notes"][-1] == "12 of 12 curves lack runs."


def test_the_headline_is_told(everything):
    out, _, _ = everything
    result = CliRunner().invoke(app, ["paper", "figure7", "--scale", "smoke", "--out", str(out), "--only-draw"])
    assert "mean over 5 data sets under 90% stragglers" in result.stdout
    assert "the paper reports 22" in result.stdout


def test_a_wrong_name_is_one_sentence():
    result = CliRunner().invoke(app, ["paper", "figure13"])
    assert result.exit_code == 2
    assert result.stderr.startswith("fedprox: NAME must be list, all or one of table1, figure1")
