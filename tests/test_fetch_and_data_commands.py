import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from typer.testing import CliRunner

from fedprox.cli import app
from fedprox.core.errors import DataError
from fedprox.data import read_arrow, read_iterator
from fedprox.data.fetch import fetch
from fedprox.data.sources import File, Need, Source
from fedprox.population import Population
from fedprox.population.writer import save_population

CONTENT = bytes(range(256)) * 40_000


@pytest.fixture
def server():
    """Serves CONTENT with ranges at /whole, half of it before it hangs up at /breaks, and nothing at /gone."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            begin = int(self.headers.get("Range", "bytes=0-")[6:-1])
            asked.append((self.path, begin))
            if self.path == "/gone":
                self.send_error(404)
                return
            self.send_response(206 if begin else 200)
            self.send_header("Content-Length", str(len(CONTENT) - begin))
            self.end_headers()
            body = CONTENT[begin:]
            self.wfile.write(body[: len(body) // 2] if self.path == "/breaks" else body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    thread.join()
    server.server_close()


def _source(urls, checksum=None):
    return Source("toy", "", (Need("the toy", (File("toy.bin", tuple(urls), checksum),)),))


def test_a_mirror_takes_over_and_goes_on_where_the_first_stopped(server, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPROX_DATA", str(tmp_path))
    address, asked = server
    told = []
    checksum = "md5:" + hashlib.md5(CONTENT).hexdigest()
    source = _source([f"{address}/gone", f"{address}/breaks", f"{address}/whole"], checksum)
    files = fetch(source, progress=lambda *args: told.append(args))
    assert files["the toy"].read_bytes() == CONTENT
    assert [path for path, _ in asked] == ["/gone", "/breaks", "/whole"]
    assert 0 < asked[2][1] <= len(CONTENT) // 2
    assert told[-1] == ("toy.bin", len(CONTENT), len(CONTENT))
    assert [path.name for path in (tmp_path / "files" / "toy").iterdir()] == ["toy.bin"]
    fetch(source)
    assert len(asked) == 3  # found, not asked for again


def test_a_wrong_checksum_is_refused(server, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPROX_DATA", str(tmp_path))
    address, _ = server
    with pytest.raises(DataError, match=r"what arrived has another checksum.*--from"):
        fetch(_source([f"{address}/whole"], "md5:" + "0" * 32))
    (tmp_path / "toy.bin").write_bytes(b"cut off")
    with pytest.raises(DataError, match=r"toy.bin must have the md5 checksum 0+; got"):
        fetch(_source([], "md5:" + "0" * 32), [tmp_path])


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
