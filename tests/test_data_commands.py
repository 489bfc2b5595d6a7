import json

import numpy as np
import pytest
from typer.testing import CliRunner

from fedprox.cli import app
from fedprox.core.errors import DataError
from fedprox.data import read_arrow, read_iterator
from fedprox.population import Population
from fedprox.population.writer import save_population


def test_commands_say_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPROX_DATA", str(tmp_path))
    run = CliRunner().invoke
    listed = json.loads(run(app, ["data", "list", "--json"]).stdout)
    names = ["mnist", "femnist", "shakespeare", "sent140", "cifar10", "fashion_mnist"]
    assert [row["name"] for row in listed["data"]] == names
    for arguments, sentence in (
        (
            ["fetch", "mnits"],
            "NAME must be one of mnist, femnist, shakespeare, sent140, cifar10, fashion_mnist; got 'mnits'",
        ),
        (["prepare", "mnist", "--from", str(tmp_path / "no")], "`--from` must be a folder"),
        (["prepare", "mnist", "--use", "x.gz"], "`--use` must name a file that mnist can use"),
        (["prepare", "mnist", "--vectors", "x"], "`--vectors` must be used with sent140"),
        (["stats", str(tmp_path)], "has no manifest.json"),
    ):
        result = run(app, ["data", *arguments])
        assert result.exit_code == 2
        assert sentence in result.stderr
        assert "Traceback" not in result.stderr


def test_prepare_and_stats_from_a_users_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPROX_DATA", str(tmp_path / "home"))
    random = np.random.default_rng(0)
    (tmp_path / "emnist").mkdir()
    images = random.integers(0, 255, (600, 28, 28), np.uint8)
    np.savez(tmp_path / "emnist" / "emnist_aj.npz", images=images, labels=np.arange(600) % 10)
    result = CliRunner().invoke(app, ["data", "prepare", "femnist", "--from", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["statistics"]["devices"] == 200
    assert record["about"]["files"] == ["emnist_aj.npz"]
    picture = tmp_path / "p.png"
    result = CliRunner().invoke(app, ["data", "stats", "femnist", "--out", str(picture)])
    assert result.exit_code == 0, result.output
    assert "Table 1" in result.stdout
    assert "B = " in result.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_stats_of_a_folder_agree_with_numpy(tmp_path):
    random = np.random.default_rng(0)
    x, y, device = random.normal(size=(60, 3)).astype(np.float32), np.arange(60) % 2, np.arange(60) % 4
    population = Population.from_arrays(x, y, device, test=np.zeros(60, bool))
    path = save_population(population, tmp_path / "mine")
    result = CliRunner().invoke(app, ["data", "stats", str(path), "--out", str(tmp_path / "p.png"), "--json"])
    record = json.loads(result.stdout)
    gradients = []
    for k in range(4):
        xs, ys = population.train.of(k)
        residual = np.full((len(ys), 2), 0.5) - np.eye(2)[ys]
        gradients.append(np.concatenate([(residual.T @ xs).ravel(), residual.sum(axis=0)]) / len(ys))
    mean, square = np.mean(gradients, axis=0), np.mean(np.sum(np.square(gradients), axis=1))
    assert record["dissimilarity"] == pytest.approx(np.sqrt(square / (mean @ mean)), rel=1e-4)
    assert record["gradient_variance"] == pytest.approx(square - mean @ mean, rel=1e-4)


def test_arrow_and_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import feather, parquet

    table = pyarrow.table(
        {
            "device": ["b", "a", "b"],
            "y": [0, 1, 2],
            "x": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]],
            "test": [False, False, True],
        }
    )
    parquet.write_table(table, tmp_path / "t.parquet")
    feather.write_feather(
        table.drop_columns(["x"]).append_column("f", pyarrow.array([7.0, 8.0, 9.0])), tmp_path / "t.arrow"
    )
    population = read_arrow(tmp_path / "t.parquet")
    assert list(population.names) == ["a", "b"]
    assert population.test.of(1)[0].tolist() == [[5.0, 6.0]]
    assert read_arrow(tmp_path / "t.arrow").train.of(0)[0].tolist() == [[8.0]]
    (tmp_path / "bad").write_bytes(b"PAR1 and nothing more")
    with pytest.raises(DataError, match="not a readable Arrow or Parquet file"):
        read_arrow(tmp_path / "bad")
    parquet.write_table(table.drop_columns(["y"]), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="y is missing"):
        read_arrow(tmp_path / "t.parquet")
    parquet.write_table(
        pyarrow.table({"device": [1, 2], "y": [0, 1], "x": [[1.0], [1.0, 2.0]]}), tmp_path / "t.parquet"
    )
    with pytest.raises(DataError, match="lists of one length; got 1 to 2"):
        read_arrow(tmp_path / "t.parquet")


def test_iterators():
    population = read_iterator((k % 3, [float(k)], k % 2) for k in range(30))
    assert (population.devices, len(population.train), len(population.test)) == (3, 24, 6)
    with pytest.raises(DataError, match="device b, row 1"):
        read_iterator([("a", [1.0], 0), ("b", [1.0, 2.0], 0)])
    with pytest.raises(DataError, match="the iterator gave none"):
        read_iterator([])
    with pytest.raises(DataError, match=r"examples must be triples .* to iterate over; got a NoneType"):
        read_iterator(None)
