import json
import subprocess
import sys
import zlib

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedprox
from fedprox.core.errors import DataError
from fedprox.population import Population, Samples
from fedprox.population.folder import manifest_digest, open_population, read_manifest, verify_population
from fedprox.population.writer import PopulationWriter, save_population


def _population(sizes=(3, 1, 2), tests=(1, 0, 2), extras=None):
    random = np.random.default_rng(0)
    rows = [a + b for a, b in zip(sizes, tests, strict=True)]
    offsets = np.cumsum([0, *rows])
    is_test = np.concatenate([np.arange(a + b) >= a for a, b in zip(sizes, tests, strict=True)])
    names = [f"gerät {k}" for k in range(len(sizes))]
    x = random.normal(size=(offsets[-1], 2, 2)).astype(np.float32)
    return Population.from_split(
        x, random.integers(0, 3, offsets[-1]), offsets, is_test, names=names, classes=3, extras=extras
    )


def test_what_is_written_is_what_is_opened(tmp_path):
    population = _population(extras={"vectors": np.eye(3, dtype=np.float32)})
    stored = open_population(save_population(population, tmp_path / "p", about={"seed": 1}), verify=True)
    for part in ("train", "test"):
        for name in ("x", "y", "offsets"):
            np.testing.assert_array_equal(
                getattr(getattr(stored, part), name), getattr(getattr(population, part), name)
            )
    assert list(stored.names) == population.names
    assert stored.names[-1] == "gerät 2"
    assert (stored.classes, stored.shape) == (3, (2, 2))
    np.testing.assert_array_equal(stored.extras["vectors"], np.eye(3))
    manifest = read_manifest(tmp_path / "p")
    assert manifest["about"] == {"seed": 1}
    assert manifest["devices_without_test_data"] == 1


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), min_size=1, max_size=8))
def test_any_sizes_survive(tmp_path_factory, sizes):
    population = _population(*zip(*sizes, strict=True))
    stored = open_population(save_population(population, tmp_path_factory.mktemp("p") / "p"))
    np.testing.assert_array_equal(stored.train.x, population.train.x)
    np.testing.assert_array_equal(stored.test.offsets, population.test.offsets)


def test_columns_are_npy_files_that_jax_reads_in_place(tmp_path):
    path = save_population(_population(), tmp_path / "p")
    stored = open_population(path)
    np.testing.assert_array_equal(np.load(path / "train_x.npy"), stored.train.x)
    assert stored.train.x.ctypes.data % 64 == 0
    assert jax.device_put(stored.train.x).unsafe_buffer_pointer() == stored.train.x.ctypes.data


def test_devices_without_training_data_are_left_out_and_counted(tmp_path):
    x, y = np.ones((2, 1), np.float32), np.array([0, 1])
    with PopulationWriter(tmp_path / "p") as writer:
        writer.add("empty", (x[:0], y[:0]), (x, y))
        writer.add("full", (x, y))
    assert (writer.devices, writer.left_out_count, writer.left_out) == (1, 1, ["empty"])
    assert read_manifest(tmp_path / "p")["devices_left_out"] == {"without_training_data": 1, "first": ["empty"]}
    assert open_population(tmp_path / "p").name(0) == "full"


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (([[np.nan]], [0]), "device a, row 0 is not"),
        (([[1.0], [1.0]], [0, 7]), "below 3, the number of classes; device a, row 1 has 7"),
        (([[1.0]], [-1]), "device a, row 0 has -1"),
        (([[1.0, 2.0]], [0]), r"must be float32 of shape \(1,\)"),
    ],
)
def test_bad_rows_are_named_and_nothing_is_left(tmp_path, train, message):
    def write():
        with PopulationWriter(tmp_path / "p", classes=3) as writer:
            writer.add("first", (np.ones((1, 1), np.float32), np.array([0])))
            writer.add("a", tuple(map(np.array, train)))

    with pytest.raises(DataError, match=message):
        write()
    assert list(tmp_path.iterdir()) == []


def test_an_error_keeps_the_older_folder(tmp_path):
    save_population(_population(), tmp_path / "p")
    with pytest.raises(RuntimeError), PopulationWriter(tmp_path / "p"):
        raise RuntimeError
    assert open_population(tmp_path / "p").devices == 3
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


def test_an_empty_population_and_a_foreign_folder_are_refused(tmp_path):
    with pytest.raises(DataError, match="at least one device"), PopulationWriter(tmp_path / "p"):
        pass
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(DataError, match="holds other files"), PopulationWriter(tmp_path / "mine"):
        pass
    assert (tmp_path / "mine" / "letter.txt").exists()


def test_damage_is_found(tmp_path):
    path = save_population(_population(), tmp_path / "p")
    file = path / "train_x.npy"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    open_population(path)
    with pytest.raises(DataError, match=r"train_x.npy must have the checksum"):
        verify_population(path)
    file.write_bytes(whole[:-4])
    with pytest.raises(DataError, match=r"train_x.npy must have \d+ bytes"):
        open_population(path)
    file.unlink()
    with pytest.raises(DataError, match="is missing"):
        open_population(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(format="other"), "must be the manifest of a population"),
        (lambda m: m.update(version=99), "must have version 2; got 99"),
        (lambda m: m["columns"].pop("train_y"), "must list the column 'train_y'"),
        (lambda m: m["columns"]["train_y"].pop("dtype"), "must give dtype, shape and begins of train_y"),
        (lambda m: m["columns"].update({"../x": {}}), "without folders"),
    ],
)
def test_a_wrong_manifest_is_refused(tmp_path, change, message):
    path = save_population(_population(), tmp_path / "p")
    manifest = read_manifest(path)
    change(manifest)
    manifest["sha256"] = manifest_digest(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=message):
        open_population(path)


def test_no_folder(tmp_path):
    with pytest.raises(DataError, match=r"has no manifest.json"):
        open_population(tmp_path)


def test_a_large_population_opens_at_once_and_in_little_memory(tmp_path):
    devices = 200_000
    with PopulationWriter(tmp_path / "p", classes=2) as writer:
        for begin in range(0, devices, 20_000):
            one = Samples(np.zeros((20_000, 8), np.float32), np.zeros(20_000, int), np.arange(20_001))
            none = Samples(one.x[:0], one.y[:0], np.zeros(20_001, int))
            writer.add_block([str(begin + k) for k in range(20_000)], one, none)
    code = (
        "import resource, sys, time\n"
        "from fedprox.population.folder import open_population\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "clock = time.process_time()\n"
        "assert open_population(sys.argv[1]).name(199_999) == '199999'\n"
        "print(time.process_time() - clock, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "p")], check=True, capture_output=True, text=True
    )
    seconds, kilobytes = map(float, answer.stdout.split())
    assert seconds < 0.1  # a fifth of the devices, a fifth of the limit
    assert kilobytes < 20_000


def _rewrite(folder, name, change, digests=False):
    """Change a column in place; with `digests`, as a program would that writes its own manifest."""
    manifest = json.loads((folder / "manifest.json").read_text())
    schema = manifest["columns"][name]
    raw = bytearray((folder / f"{name}.npy").read_bytes())
    data = np.frombuffer(raw, schema["dtype"], offset=schema["begins"]).copy()
    change(data)
    raw[schema["begins"] :] = data.tobytes()
    (folder / f"{name}.npy").write_bytes(raw)
    if digests:
        schema["parts"] = [zlib.crc32(data.tobytes())]
        manifest["sha256"] = manifest_digest(manifest)
        (folder / "manifest.json").write_text(json.dumps(manifest))


def test_offsets_are_checked_when_a_population_is_opened(tmp_path):
    folder = save_population(_population(), tmp_path / "p")
    _rewrite(folder, "train_offsets", lambda data: data.__setitem__(0, 3))
    with pytest.raises(DataError, match=r"train_offsets.npy must have the digests of its manifest; bytes 0 to 32"):
        open_population(folder)
    _rewrite(folder, "train_offsets", lambda data: None, digests=True)
    with pytest.raises(DataError, match=r"train_offsets.npy must begin at 0 and never decrease; it begins at 3"):
        open_population(folder)


@pytest.mark.parametrize(("name", "sentence"), [("train_x", "have changed"), ("test_y", "have changed")])
def test_samples_are_checked_before_they_are_used(tmp_path, name, sentence):
    folder = save_population(_population(), tmp_path / "p")
    _rewrite(folder, name, lambda data: data.__setitem__(0, 2 - data[0]))
    population = open_population(folder)  # nothing is read yet
    with pytest.raises(DataError, match=rf"{name}.npy must have the digests .* {sentence}"):
        fedprox.train({"rounds": 1, "devices": {"per_round": 1}}, population=population)


def test_labels_out_of_range_are_refused(tmp_path):
    folder = save_population(_population(), tmp_path / "p")
    _rewrite(folder, "train_y", lambda data: data.__setitem__(1, 9), digests=True)
    population = open_population(folder)
    with pytest.raises(DataError, match=r"train_y.npy must have labels from 0 to 2; got 9"):
        population.check(np.array([0]))


def test_parts_are_checked_where_they_are_read_alone(tmp_path):
    random = np.random.default_rng(0)
    x = random.normal(size=(6, 90_000)).astype(np.float32)  # 360 kB each: a part holds almost three
    folder = save_population(Population.from_arrays(x, [0] * 6, np.arange(6), test=[False] * 6), tmp_path / "p")
    _rewrite(folder, "train_x", lambda data: data.__setitem__(-1, 7.0))
    population = open_population(folder)
    population.check(np.array([0, 1]))
    with pytest.raises(DataError, match=r"train_x.npy must have the digests"):
        population.check(np.array([5]))
    with pytest.raises(DataError, match=r"train_x.npy must have the digests"):
        population.check()
