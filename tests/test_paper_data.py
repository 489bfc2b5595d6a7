"""The paper's four data sets, from the real files where they are and from small ones of the same form."""

import csv
import gzip
import struct
import zipfile

import numpy as np
import pytest

from fedprox.config import Config
from fedprox.core.errors import DataError
from fedprox.data import femnist, load, mnist, paper_model, sent140, shakespeare
from fedprox.data.idx import read_idx
from fedprox.data.plays import parse_plays
from fedprox.data.sources import SOURCES, find, population_path
from fedprox.data.table1 import PAPER, Statistics, nearest_draw, statistics
from fedprox.data.word_vectors import read_vectors
from fedprox.population import Population
from fedprox.population.folder import open_population, read_manifest
from fedprox.population.writer import save_population
from shared_data import FOLDER, real


def _prepared(name, module, out, first):
    real(first)
    files = find(SOURCES[name], [FOLDER])
    assert None not in files.values()
    module.prepare(files, out)
    population = open_population(out, verify=True)
    return population, statistics(np.diff(population.train.offsets) + np.diff(population.test.offsets))


def _near(found, paper, share):
    assert abs(found.mean / paper.mean - 1) < share
    assert abs(found.deviation / paper.deviation - 1) < share


def test_mnist_is_table_1(tmp_path):
    population, found = _prepared("mnist", mnist, tmp_path / "m", "mnist/train-images-idx3-ubyte.gz")
    assert found.devices == 1000
    assert abs(found.samples - PAPER["mnist"].samples) < 70
    _near(found, PAPER["mnist"], 0.02)
    for device in (0, 9, 517):
        labels = np.concatenate([part.of(device)[1] for part in (population.train, population.test)])
        assert set(np.unique(labels)) == {device % 10, (device + 1) % 10}
    assert abs(len(population.test) / found.samples - 0.2) < 0.01
    pixels = population.train.x[:, 406]
    assert abs(pixels.mean()) < 0.05
    assert abs(pixels.std() - 1) < 0.05


def test_femnist_is_table_1_and_no_test_image_is_trained_on(tmp_path):
    population, found = _prepared("femnist", femnist, tmp_path / "f", "emnist/emnist_aj.npz")
    assert found.devices == 200
    _near(found, PAPER["femnist"], 0.04)
    trained = {row.tobytes() for row in population.train.x}
    assert not any(row.tobytes() in trained for row in population.test.x)
    for device in range(0, 200, 37):
        x, y = population.train.of(device)
        assert set(np.unique(y)) <= {(device + place) % 10 for place in range(5)}
        assert len({row.tobytes() for row in x}) == len(x)  # nothing twice on one device
    assert 0 <= population.train.x.min() <= population.train.x.max() <= 1


def test_shakespeare_is_table_1_and_splits_in_time(tmp_path):
    population, found = _prepared("shakespeare", shakespeare, tmp_path / "s", "shakespeare/leaf_roles_1994.json.gz")
    assert found.devices == 143
    _near(found, PAPER["shakespeare"], 0.02)
    assert (population.shape, population.classes, population.train.x.dtype) == ((80,), 80, np.uint8)
    device = int(np.diff(population.test.offsets).argmax())
    (x, y), (x_test, y_test) = population.train.of(device), population.test.of(device)
    assert len(y_test) == (len(y) + len(y_test)) // 5
    np.testing.assert_array_equal(x[1:, -1], y[:-1])
    np.testing.assert_array_equal(x_test[0, :-1], x[-1, 1:])  # the next window of the same text
    assert x_test[0, -1] == y[-1]


def test_sent140_with_the_partial_file(tmp_path):
    population, found = _prepared("sent140", sent140, tmp_path / "t", "sent140/sent140_partial.csv.gz")
    assert found.samples == 28_583
    _near(found, PAPER["sent140"], 0.02)
    vectors = population.extras["vectors"]
    assert vectors.shape[1] == 100
    assert population.train.x.max() < len(vectors)
    assert not vectors[0].any()
    about = read_manifest(tmp_path / "t")["about"]
    assert about["devices"].startswith("groups of accounts")
    assert about["vectors"].startswith("glove6B_100d_f16.npz, 100 dimensions")
    positive = [population.train.of(k)[1].mean() for k in range(population.devices)]
    assert 0.24 < np.std(positive) < 0.33


def _tweets(path, accounts, tweets, encoding="latin-1"):
    with path.open("w", encoding=encoding, newline="") as file:
        rows = csv.writer(file, quoting=csv.QUOTE_ALL)
        for account in range(accounts):
            for k in range(tweets[account % len(tweets)]):
                rows.writerow(["04"[k % 2], str(k), "Mon", "NO_QUERY", f"user{account}", f"good caf\xe9 number {k}"])


def test_sent140_with_a_file_of_the_full_form(tmp_path):
    """Enough accounts with 30 tweets: one account is one device, from the original archive and GloVe's text."""
    csv_file = tmp_path / "training.1600000.processed.noemoticon.csv"
    _tweets(csv_file, 2000, (30, 40, 120, 5))
    with zipfile.ZipFile(tmp_path / "trainingandtestdata.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("testdata.manual.2009.06.14.csv", "")
        archive.write(csv_file, csv_file.name)
    (tmp_path / "glove.6B.300d.txt").write_text("good 0.5 1\nunused 1 1\ncaf\xe9 -1 0\n", encoding="utf-8")
    files = find(SOURCES["sent140"], [tmp_path])
    assert [path.name for path in files.values()] == ["trainingandtestdata.zip", "glove.6B.300d.txt"]
    sent140.prepare(files, tmp_path / "p")
    population = open_population(tmp_path / "p")
    assert population.devices == 772
    assert all(name.startswith("user") for name in population.names)
    np.testing.assert_array_equal(population.extras["vectors"], [[0, 0], [-0.25, 0.5], [0.5, 1], [-1, 0]])
    np.testing.assert_array_equal(population.train.x[0, :5], [2, 3, 1, 1, 0])
    assert read_manifest(tmp_path / "p")["about"]["devices"].startswith("772 of 1500 accounts")


@pytest.mark.parametrize(
    ("row", "message"),
    [('"3","1","d","q","u","t"', "row 2 has '3'"), ('"0","1","d","q","u"', "row 2 has 5")],
)
def test_bad_tweets_are_named(tmp_path, row, message):
    (tmp_path / "t.csv").write_text('"0","1","d","q","u","t"\n' + row + "\n")
    with pytest.raises(DataError, match=message):
        list(sent140.read_tweets(tmp_path / "t.csv"))


def test_bad_vectors_are_named(tmp_path):
    file = tmp_path / "g.txt"
    file.write_text("good 1 2\nbad 1\n")
    with pytest.raises(DataError, match="must have 2 numbers in every row; row 2 has 1"):
        read_vectors(file, {"good", "bad"})
    file.write_text("good 1 x\n")
    with pytest.raises(DataError, match="row 1 does not"):
        read_vectors(file, {"good"})
    with pytest.raises(DataError, match="at least one word"):
        read_vectors(file, {"other"})


PLAY = """\
<<THIS ELECTRONIC VERSION IS
COPYRIGHT>>

1599

THE
PLAY

by William Shakespeare

Dramatis Personae

  ANNE, a queen
  TOM. a fool

ACT I. SCENE 1.
London. A room

Enter ANNE, and
TOM

  ANNE. Good morrow, [Aside] fool.               Exit TOM
    Enter the city, clip your wives.

                        Enter TOM

    He comes!
  2. LORD. Ay.
SCENE 2.
A wood
  TOM. Alas,
    poor fool.                                     [Kneels]
    Exeunt
THE END
"""
MODERN = """\
The Complete Works
by William Shakespeare

                    Contents

    THE SONNETS
    THE PLAY



THE SONNETS

From fairest creatures we desire increase,

THE PLAY

Contents

ACT I
Scene I. A room.

Dramatis Personæ

ANNE, a queen

ACT I

SCENE I. A room.

 Enter Anne and Tom.

ANNE.
Good morrow, [_Aside_] fool.
He comes!

FIRST LORD.
Ay.

ANNE.
Well met.

FIRST LORD.
Farewell.

 [_Exeunt._]
"""


def test_the_layout_of_1994():
    assert list(parse_plays(PLAY)) == [
        ("THE PLAY", "ANNE", "Good morrow, fool. Enter the city, clip your wives. He comes!"),
        ("THE PLAY", "2. LORD", "Ay."),
        ("THE PLAY", "TOM", "Alas, poor fool."),
    ]


def test_the_later_layout():
    assert list(parse_plays(MODERN.replace("\n", "\r\n"))) == [
        ("THE PLAY", "ANNE", "Good morrow, fool. He comes!"),
        ("THE PLAY", "FIRST LORD", "Ay."),
        ("THE PLAY", "ANNE", "Well met."),
        ("THE PLAY", "FIRST LORD", "Farewell."),
    ]


def test_the_real_text_has_its_roles():
    roles = shakespeare.read_roles(real("shakespeare/t8.shakespeare.first54pct.txt.gz"))
    assert 600 < sum(len(text) > 80 for text in roles.values()) < 700
    lear, ham = roles["THE_TRAGEDY_OF_KING_LEAR_LEAR"], roles["THE_TRAGEDY_OF_HAMLET_PRINCE_OF_DENMARK_HAM"]
    assert "Blow, winds, and crack your cheeks!" in lear
    assert "To be, or not to be- that is the question" in ham
    assert roles["THE_COMEDY_OF_ERRORS_AEGEON"].startswith("Proceed, Solinus, to procure my fall")
    text = " ".join(roles.values())
    assert "COPYRIGHT" not in text
    assert text.count("Exeunt") + text.count(" Enter ") < 20


def test_the_table_of_lines():
    roles = shakespeare.read_roles(real("shakespeare/will_play_text.csv.bz2"))
    assert roles["HENRY_IV_KING_HENRY_IV"].startswith("So shaken as we are, so wan with care, Find we a time")
    assert len({name for name, text in roles.items() if len(text) > 80}) > 700


def test_text_that_is_no_play_or_not_utf8(tmp_path):
    (tmp_path / "a.txt").write_text("Shall I compare thee")
    with pytest.raises(DataError, match="must hold plays"):
        shakespeare.read_roles(tmp_path / "a.txt")
    (tmp_path / "b.txt").write_bytes(b"one\ntw\xff")
    with pytest.raises(DataError, match=r"not UTF-8 text \(line 2, byte 6\)"):
        shakespeare.read_roles(tmp_path / "b.txt")
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"x" * 1000)[:-9])
    with pytest.raises(DataError, match="cut off or corrupt"):
        shakespeare.read_roles(tmp_path / "c.txt.gz")


def _idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def test_idx_files(tmp_path):
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    file = tmp_path / "a"
    for content in (_idx(array), gzip.compress(_idx(array))):
        file.write_bytes(content)
        np.testing.assert_array_equal(read_idx(file, 3), array)
    for content, message in (
        (_idx(array)[:-1], "as its header says"),
        (_idx(array[0]), "with 3 dimensions"),
        (gzip.compress(_idx(array))[:-12], "not a complete gzip file"),
    ):
        file.write_bytes(content)
        with pytest.raises(DataError, match=message):
            read_idx(file, 3)


def test_labels_of_mnist_out_of_range(tmp_path):
    files = {}
    for part in ("train", "t10k"):
        for kind, array in (
            ("images-idx3", np.zeros((3, 2, 2), np.uint8)),
            ("labels-idx1", np.array([0, 12, 1], np.uint8)),
        ):
            name = f"{part}-{kind}-ubyte.gz"
            files[name] = tmp_path / name
            files[name].write_bytes(gzip.compress(_idx(array)))
    with pytest.raises(DataError, match=r"train-labels.*row 1 has 12"):
        mnist.prepare(files, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_emnist_archive(tmp_path):
    """Columns come first in EMNIST, and lower case begins at 36."""
    image = np.arange(784, dtype=np.uint16).reshape(28, 28).astype(np.uint8)
    with zipfile.ZipFile(tmp_path / "gzip.zip", "w") as archive:
        for part in ("train", "test"):
            for kind, array in (
                ("images-idx3", np.stack([image] * 3)),
                ("labels-idx1", np.array([5, 36, 45], np.uint8)),
            ):
                archive.writestr(f"gzip/emnist-byclass-{part}-{kind}-ubyte.gz", gzip.compress(_idx(array)))
    images, labels = femnist.read_letters(tmp_path / "gzip.zip")
    assert labels.tolist() == [0, 9, 0, 9]
    np.testing.assert_array_equal(images[0], image.T)


def test_the_nearest_draw_is_taken():
    draws = [np.array([1, 9]), np.array([4, 8]), np.array([5, 5])]
    assert nearest_draw(Statistics(2, 12, 6.0, 2.0), lambda attempt: draws[attempt], tries=3) == 1


def test_prepared_data_is_found_or_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPROX_DATA", str(tmp_path))
    config = Config.from_dict({"data": {"name": "mnist", "seed": 3}})
    with pytest.raises(DataError, match="run `fedprox data prepare mnist --seed 3`"):
        load(config)
    assert population_path("mnist", 3) == tmp_path / "populations" / "mnist-3"
    assert paper_model(config.data) == "softmax_regression"
    assert paper_model(Config.from_dict({"data": {"name": "sent140"}}).data) == "sentiment_lstm"


def test_mnist_is_standardised_on_pixels_of_0_to_255():
    x = np.array([[0, 0], [2, 255], [0, 0], [2, 255]], np.uint8)
    expected = np.array([-1 / 1.001, -127.5 / 127.501], np.float32)
    np.testing.assert_allclose(mnist.standardised(x)[0], expected, rtol=1e-6)


def test_mnist_of_an_earlier_version_is_refused(tmp_path):
    population = Population.from_arrays(np.eye(4), [0, 1, 0, 1], [0, 0, 1, 1])
    settings = {"data": {"name": "mnist", "path": str(tmp_path / "m")}}
    save_population(population, tmp_path / "m", about={"data": "mnist", "seed": 0})
    with pytest.raises(DataError, match=r"must have pixels of 0 to 255 .* run `fedprox data prepare mnist` again"):
        load(Config.from_dict(settings))
    save_population(population, tmp_path / "m", about={"data": "mnist", "pixels": "0 to 255"})
    assert load(Config.from_dict(settings)).devices == 2
