"""Every table and figure at the smallest scale, from the command line; and nothing is run twice."""

import csv
import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from conftest import running_here
from fedprox.cli import app
from fedprox.paper.claims import CLAIMS
from fedprox.paper.experiments import EXPERIMENTS, Curve
from fedprox.paper.gathered import gather_all, read_gathered
from fedprox.paper.results import Results
from fedprox.paper.results_page import results_page
from fedprox.paper.runs import Setting, config_hash
from fedprox.paper.scales import find_scale
from fedprox.paper.tables import read_table1, table1
from fedprox.runs.reader import load_run


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """`fedprox paper all --scale smoke` in a new folder, on a machine without any prepared data."""
    out = tmp_path_factory.mktemp("paper")
    with pytest.MonkeyPatch.context() as patch, running_here():
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
    gathered = gather_all(results)
    stored = read_gathered(out / "claims.json")
    assert text == results_page(replace(gathered, sources=stored.sources), table1())
    assert text == results_page(stored, read_table1(out / "table1.csv"))
    assert made["files"][-1] == str(out / "results.md")
    assert re.findall(r"^### (.+)$", text, re.MULTILINE) == list(CLAIMS)
    assert text.count("**Not tested at this scale**") == len(CLAIMS)  # a few rounds are no result
    for link in re.findall(r"\]\((figure[^)]+)\)", text):
        assert (out / link).exists()


def test_the_page_may_lie_elsewhere_than_the_figures(everything, tmp_path):
    out, _, _ = everything
    page = tmp_path / "docs" / "results.md"
    text = results_page(gather_all(Results(Setting(out, find_scale("smoke")))), [], "paper")
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


def numbers(folder, name, panel):
    """Return the lines of a figure's table, of one panel and of all others."""
    lines = [line for line in (folder / f"{name}.csv").read_text().splitlines() if not line.startswith("#")]
    return [line for line in lines if f",{panel}," in line], [line for line in lines if f",{panel}," not in line]


def test_the_panels_of_one_data_set_are_replaced(everything, tmp_path):
    out, _, _ = everything
    figures = tmp_path / "figures"
    figures.mkdir()
    for file in (*out.glob("figure*"), *out.glob("*.csv"), out / "claims.json"):
        shutil.copy(file, figures)
    before = read_gathered(figures / "claims.json")
    options = ("--only", "mnist", "--seeds", "2", "--figures", str(figures), "--page", str(tmp_path / "page.md"))
    made = invoke("all", tmp_path / "new", *options)
    assert made["runs"] == 26
    mnist, others = numbers(figures, "figure1", "MNIST")
    assert {line.split(",")[4] for line in mnist} == {"2"}
    assert others == numbers(out, "figure1", "MNIST")[1]
    assert numbers(figures, "figure1", "MNIST")[0] != numbers(out, "figure1", "MNIST")[0]
    assert (figures / "figure2.png").read_bytes() == (out / "figure2.png").read_bytes()
    assert not [file for file in made["files"] if "figure2" in file]
    record = json.loads((figures / "figure1.json").read_text())
    seeds = {name: source["seeds"] for name, source in record["datasets"].items()}
    assert seeds == {"synthetic-1-1": 2, "mnist": 2, "femnist": 1, "shakespeare": 1, "sent140": 1}
    assert record["datasets"]["mnist"]["devices"] == 12
    assert record["notes"][0].endswith("over 2 seeds (FEMNIST 1, Shakespeare 1, Sent140 1).")
    assert sum(run["dataset"] == "mnist" for run in record["runs"]) == 16
    assert sum(run["dataset"] == "femnist" for run in record["runs"]) == 8
    after = read_gathered(figures / "claims.json")
    for name, found in after.found.items():
        assert [one for one in found if one.dataset != "mnist"] == [
            one for one in before.found[name] if one.dataset != "mnist"
        ]
    assert after.found["partial-work-is-faster"] != before.found["partial-work-is-faster"]
    assert "| MNIST | smoke | 12 | 2 | 2 |" in (tmp_path / "page.md").read_text(encoding="utf-8")


def test_the_headline_is_told(everything):
    out, _, _ = everything
    result = CliRunner().invoke(app, ["paper", "figure7", "--scale", "smoke", "--out", str(out), "--only-draw"])
    assert "mean over 5 data sets under 90% stragglers" in result.stdout
    assert "the paper reports 22" in result.stdout


def test_a_wrong_name_is_one_sentence():
    result = CliRunner().invoke(app, ["paper", "figure13"])
    assert result.exit_code == 2
    assert result.stderr.startswith("fedprox: NAME must be list, all or one of table1, figure1")
