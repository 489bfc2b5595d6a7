"""CIFAR-10 and Fashion-MNIST: their files, and how they are divided among devices."""

import gzip
import io
import json
import struct
import tarfile
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from fedprox import Population, data
from fedprox.cli import app
from fedprox.config import Config
from fedprox.core.errors import ConfigError, DataError
from fedprox.data import cifar10, fashion_mnist
from fedprox.data.checksums import check
from fedprox.data.fetch import fetch
from fedprox.data.sources import SOURCES, File, population_path
from fedprox.population.folder import open_population, read_manifest
from fedprox.population.repartition import repartition
from fedprox.population.set_aside import set_aside
from shared_data import real


def batch(rows, seed=0, labels=10):
    """Return rows of the official layout with every label in turn."""
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (rows, 3072), np.uint8)
    return np.concatenate([(np.arange(rows) % labels).astype(np.uint8)[:, None], pixels], axis=1)


@pytest.fixture
def cifar(tmp_path):
    """A folder with five training files and a test file of 40 and 30 rows; two are gzipped."""
    folder = tmp_path / "cifar10"
    folder.mkdir()
    for number in range(1, 6):
        (folder / f"data_batch_{number}.bin").write_bytes(batch(40, number).tobytes())
    for name in ("data_batch_5", "test_batch"):
        (folder / f"{name}.bin").unlink(missing_ok=True)
        (folder / f"{name}.bin.gz").write_bytes(gzip.compress(batch(30 if name == "test_batch" else 40, 5).tobytes()))
    return folder


def test_cifar_10_is_standardised_and_pooled(cifar, tmp_path):
    cifar10.prepare({"CIFAR-10": cifar / "data_batch_1.bin"}, tmp_path / "out")
    population = open_population(tmp_path / "out", verify=True)
    assert (population.devices, population.name(0), population.classes) == (1, "all", 10)
    assert population.shape == (32, 32, 3)
    assert (len(population.train), len(population.test)) == (200, 30)
    raw = np.concatenate([batch(40, number)[:, 1:] for number in range(1, 6)]).reshape(-1, 3, 1024) / 255
    red, green, blue = raw[7].reshape(3, 32, 32)[:, 3, 4]
    expected = (np.array([red, green, blue]) - raw.mean((0, 2))) / raw.std((0, 2))
    np.testing.assert_allclose(population.train.x[7, 3, 4], expected, rtol=1e-4)
    np.testing.assert_allclose(population.train.x.mean((0, 1, 2)), 0, atol=1e-4)
    assert population.train.y[:12].tolist() == [*range(10), 0, 1]
    assert read_manifest(tmp_path / "out")["about"]["part"] == "200 of 50,000 training and 30 of 10,000 test images"


def test_the_archive_gives_the_same(cifar, tmp_path):
    archive = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        for path in sorted(cifar.iterdir()):
            content = path.read_bytes()
            content = gzip.decompress(content) if path.suffix == ".gz" else content
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{path.name.removesuffix('.gz')}")
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    cifar10.prepare({"CIFAR-10": archive}, tmp_path / "a")
    cifar10.prepare({"CIFAR-10": cifar / "data_batch_1.bin"}, tmp_path / "b")
    for part in ("train_x", "train_y", "test_x", "test_y"):
        assert (tmp_path / "a" / f"{part}.npy").read_bytes() == (tmp_path / "b" / f"{part}.npy").read_bytes()
    archive.write_bytes(archive.read_bytes()[:-5000])
    with pytest.raises(DataError, match=r"cifar-10-binary.tar.gz is not a complete tar.gz file"):
        cifar10.prepare({"CIFAR-10": archive}, tmp_path / "c")


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("data_batch_3.bin", b"\0" * 5000, r"data_batch_3.bin must have 1 to 10,000 rows of 3,073 bytes.*5,000 bytes"),
        ("data_batch_2.bin", b"", "data_batch_2.bin must have 1 to 10,000 rows"),
        ("data_batch_2.bin", b"\0" * 3073 * 10_001, "got more than 30,730,000 bytes"),
        ("data_batch_4.bin", batch(3, labels=10).tobytes() + b"\x0b" + b"\0" * 3072, "below 10; row 3 has 11"),
        ("data_batch_1.bin", b"\x1f\x8b\x08cut off", "data_batch_1.bin is not a complete gzip file"),
    ],
)
def test_a_broken_file_of_cifar_10_is_named(cifar, tmp_path, name, content, sentence):
    (cifar / name).write_bytes(content)
    with pytest.raises(DataError, match=sentence):
        cifar10.prepare({"CIFAR-10": cifar / "data_batch_1.bin"}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_archive_of_links_or_of_too_many_bytes_is_refused(tmp_path, monkeypatch):
    archive = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            member = tarfile.TarInfo("data_batch_1.bin")
            member.type, member.linkname = kind, "nowhere"
            file.addfile(member)
    with pytest.raises(DataError, match=r"must come with test_batch.bin"):
        cifar10.prepare({"CIFAR-10": archive}, tmp_path / "out")
    monkeypatch.setattr(cifar10, "_UNPACKED", 5000)
    with pytest.raises(DataError, match=r"at most 5,000 bytes when it is unpacked"):
        cifar10.prepare({"CIFAR-10": archive}, tmp_path / "out")


def test_the_test_images_must_be_there(cifar, tmp_path):
    (cifar / "test_batch.bin.gz").unlink()
    with pytest.raises(DataError, match=r"must come with test_batch.bin"):
        cifar10.prepare({"CIFAR-10": cifar / "data_batch_1.bin"}, tmp_path / "out")


def test_a_missing_training_file_is_named(cifar, tmp_path):
    (cifar / "data_batch_3.bin").rename(cifar / "data_batch_6.bin")
    cifar10.prepare({"CIFAR-10": cifar / "data_batch_1.bin"}, tmp_path / "out")
    part = read_manifest(tmp_path / "out")["about"]["part"]
    assert part == "160 of 50,000 training and 30 of 10,000 test images; there is no data_batch_3.bin"


@pytest.mark.parametrize("name", ["cifar-10-python.tar.gz", "cifar-10-batches-py"])
def test_cifar_10_for_python_is_no_mystery(tmp_path, monkeypatch, name):
    """It is the first link of the data's own page; nothing here reads pickles."""
    monkeypatch.setenv("FEDPROX_DATA", str(tmp_path / "data"))
    source = SOURCES["cifar10"]
    nowhere = File("cifar-10-binary.tar.gz", ("http://127.0.0.1/none",), "0" * 64)
    source = replace(source, needs=(replace(source.needs[0], files=(nowhere,)),))
    (tmp_path / name).write_bytes(b"\x80\x04")
    with pytest.raises(DataError, match=f"is missing: .*{name} holds pickles, which are not read: take the"):
        fetch(source, [tmp_path])


def test_cifar_10_from_the_command_line(cifar, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPROX_DATA", str(tmp_path / "home"))
    run = CliRunner().invoke
    prepared = run(app, ["data", "prepare", "cifar10", "--from", str(cifar.parent), "--seed", "3"])
    assert prepared.exit_code == 0, prepared.output
    assert "part: 200 of 50,000 training" in prepared.output
    found = run(app, ["data", "stats", "cifar10", "--json", "--out", str(tmp_path / "a.png")])
    assert json.loads(found.stdout)["statistics"]["devices"] == 1
    options = ["-s", "data.partition=classes", "-s", "data.devices=10"]
    found = run(app, ["data", "stats", "cifar10", "--json", "--out", str(tmp_path / "b.png"), *options])
    assert json.loads(found.stdout)["labels_per_device"] == 2.0
    refused = run(app, ["run", "cifar10-dirichlet", "-s", "data.partition="])
    assert refused.exit_code == 2
    assert "which has no devices of its own; got ''" in refused.output


def test_the_real_sample(tmp_path):
    cifar10.prepare({"CIFAR-10": real("cifar10/data_batch_1.bin.gz")}, tmp_path / "out")
    population = open_population(tmp_path / "out")
    assert (len(population.train), len(population.test)) == (2000, 500)
    assert population.train.y[:5].tolist() == [6, 9, 9, 4, 1]  # frog, truck, truck, deer, automobile


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def test_fashion_mnist(tmp_path):
    random = np.random.default_rng(0)
    files = {}
    for part, rows in (("train", 50), ("t10k", 20)):
        images, labels = random.integers(0, 256, (rows, 28, 28), np.uint8), np.arange(rows, dtype=np.uint8) % 10
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            files[f"{part}-{kind}-ubyte.gz"] = tmp_path / f"{part}-{kind}-ubyte.gz"
            files[f"{part}-{kind}-ubyte.gz"].write_bytes(gzip.compress(idx(array)))
    fashion_mnist.prepare(files, tmp_path / "out")
    population = open_population(tmp_path / "out")
    assert (population.shape, len(population.train), len(population.test)) == ((28, 28), 50, 20)
    assert population.train.x.std() == pytest.approx(1, abs=1e-4)


def test_a_gzipped_file_that_was_packed_again_is_known_by_its_content(tmp_path):
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(b"content"))
    inside = "ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73"
    check(path, File("file.gz", (), "0" * 64, inside))
    with pytest.raises(DataError, match="must have the SHA-256"):
        check(path, File("file.gz", (), "0" * 64, "0" * 64))


def test_pooled_data_is_prepared_once_for_all_seeds():
    assert population_path("cifar10", 5) == population_path("cifar10", 0)
    assert population_path("mnist", 5) != population_path("mnist", 0)
    assert {name for name, source in SOURCES.items() if source.pooled} == {"cifar10", "fashion_mnist"}


def labels(population, k, part="train"):
    return getattr(population, part).of(k)[1]


def load(**settings):
    return data.load(Config.from_dict({"data": settings}))


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "classes", "power_law"])
def test_every_labelled_data_set_can_be_divided_anew(partition):
    before, after = load(devices=12), load(partition=partition, devices=12)
    assert after.devices == 12
    for part in ("train", "test"):
        a, b = getattr(before, part), getattr(after, part)
        assert len(a) == len(b)
        np.testing.assert_array_equal(np.sort(a.x.sum(axis=1)), np.sort(b.x.sum(axis=1)))  # each sample once
    again, other = (load(partition=partition, devices=12, seed=seed) for seed in (0, 1))
    np.testing.assert_array_equal(again.train.x, after.train.x)
    assert not np.array_equal(other.train.offsets, after.train.offsets) or not np.array_equal(
        other.train.x, after.train.x
    )


def test_test_samples_follow_the_training_labels_of_a_device():
    population = load(name="synthetic_iid", devices=10, partition="classes", classes_per_device=2)
    for k in range(10):
        assert len(set(labels(population, k).tolist())) == 2
        assert set(labels(population, k, "test").tolist()) <= set(labels(population, k).tolist())
    skewed = load(name="synthetic_iid", devices=10, partition="dirichlet", concentration=0.1)
    of_all = {part: np.bincount(getattr(skewed, part).y, minlength=10) for part in ("train", "test")}
    for k in range(10):
        train, test = (np.bincount(labels(skewed, k, part), minlength=10) for part in ("train", "test"))
        assert np.abs(test - train * of_all["test"] / of_all["train"]).max() <= 1


@pytest.mark.parametrize(
    ("settings", "error", "sentence"),
    [
        ({"concentration": 0.0}, ConfigError, r"`data.concentration` must be a (finite )?number > 0; got 0.0"),
        ({"partition": "dirichlet", "concentration": -1.0}, ConfigError, "`data.concentration` must be a number > 0"),
        ({"concentration": 0.1}, ConfigError, "must be left out unless data.partition = 'dirichlet'; got 0.1"),
        ({"classes_per_device": 3}, ConfigError, "must be left out unless data.partition = 'classes'; got 3"),
        ({"partition": "random"}, ConfigError, "`data.partition` must be one of iid, dirichlet, classes, power_law"),
        (
            {"partition": "classes", "classes_per_device": 11},
            ConfigError,
            "`data.classes_per_device` must be from 1 to 10, the number of labels in the data; got 11",
        ),
        (
            {"partition": "classes", "devices": 3, "name": "synthetic_iid"},
            ConfigError,
            r"`data.devices` times `data.classes_per_device` must be at least 10.*got 3 times 2",
        ),
        (
            {"partition": "iid", "name": "npz", "devices": 100},
            ConfigError,
            "`data.devices` must be from 1 to 8, the number of training samples, so that no device is empty; got 100",
        ),
        (
            {"partition": "classes", "name": "npz", "devices": 8},
            DataError,
            "`data.devices` = 8 and `data.classes_per_device` = 2 must leave each device a row of each of its labels: "
            "label 0 must have at least 8 rows, one per device with it; got 7",
        ),
    ],
)
def test_a_partition_that_cannot_be(tmp_path, settings, error, sentence):
    if settings.get("name") == "npz":
        file = tmp_path / "data.npz"
        np.savez(file, x=np.eye(8), y=[0, 1, 0, 0, 0, 0, 0, 0], device=np.zeros(8), test=np.zeros(8, bool))
        settings = {**settings, "path": str(file)}
    with pytest.raises(error, match=sentence):
        load(**settings)


def test_shares_that_numpy_cannot_draw_are_refused():
    pooled = Population.from_arrays(np.zeros((20, 1)), np.arange(20) % 2, np.zeros(20))
    with pytest.raises(ConfigError, match=r"`data.concentration` must be a finite number > 0; got inf"):
        repartition(pooled, "dirichlet", 2, concentration=np.inf)
    with pytest.raises(ConfigError, match=r"`seed` must be an integer >= 0, below 2.63; got -1"):
        repartition(pooled, "iid", 2, seed=-1)


def test_samples_that_are_set_aside_stay_so():
    y = np.arange(200) % 4
    whole = Population.from_arrays(np.arange(200.0)[:, None], y, np.arange(200) % 10)
    divided = set_aside(whole, validation=0.2, holdout_devices=0.2, seed=0)
    found = repartition(divided, "dirichlet", 5)
    assert found.holdout is divided.holdout
    assert sorted(found.validation.x[:, 0]) == sorted(divided.validation.x[:, 0])
    assert len(found.validation.offsets) == 6


def test_targets_can_be_dealt_but_not_by_label(tmp_path):
    file = tmp_path / "data.npz"
    np.savez(file, x=np.eye(20), y=np.linspace(0, 1, 20), device=np.zeros(20))
    assert load(name="npz", path=str(file), partition="power_law", devices=3).devices == 3
    with pytest.raises(DataError, match="'dirichlet' must be used with labels; the y of this data are not labels"):
        load(name="npz", path=str(file), partition="dirichlet", devices=3)
