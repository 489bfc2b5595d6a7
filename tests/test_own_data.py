"""Own data: tables, files and data sets of other libraries, labels of any kind, and a sentence for each mistake."""

import gzip
import json
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

import fedprox
from fedprox import data
from fedprox.config import Config
from fedprox.core.errors import ConfigError, DataError
from fedprox.core.files import read_tensors
from fedprox.data import read_arrow, read_csv, read_dataset, read_iterator
from fedprox.data.table1 import Statistics
from fedprox.deploy.device_data import DeviceData
from fedprox.measures.heterogeneity import Heterogeneity, plot_heterogeneity
from fedprox.population import Population
from fedprox.population.folder import open_population
from fedprox.population.labels import decode, encode
from fedprox.population.renumbered import aligned, targets
from fedprox.population.repartition import repartition
from fedprox.population.writer import save_population
from fedprox.runs.evaluate import evaluate, predict


@pytest.mark.parametrize(
    ("y", "codes", "labels"),
    [
        (["dog", "cat", "dog"], [1, 0, 1], ("cat", "dog")),
        ([1, 2, 1], [0, 1, 0], (1, 2)),
        ([-1, 1, 1], [0, 1, 1], (-1, 1)),
        ([0, 3, 5], [0, 3, 5], None),
        ([[2], [1], [2]], [1, 0, 1], (1, 2)),
        ([[0, 1], [1, 0], [0, 1]], [1, 0, 1], None),
        ([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]], [2, 0], None),
        ([True, False], [True, False], None),
        (np.array(["b", "a"], object), [1, 0], ("a", "b")),
        (np.array([b"b", b"a"]), [1, 0], ("a", "b")),
        (np.array(["2020-01-02", "2020-01-01"], "datetime64[D]"), [1, 0], ("2020-01-01", "2020-01-02")),
        ([(1, 2), (0, 1)], [[1, 2], [0, 1]], None),
        ([0.5, 1.5], [0.5, 1.5], None),
    ],
)
def test_labels_of_any_kind(y, codes, labels):
    found, map_ = encode(y)
    assert (found.tolist(), map_) == (codes, labels)
    if labels is not None:
        assert decode(found, map_).tolist() == [labels[code] for code in codes]


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"y": ["a", None, "b"]}, "y must have a label in every row; row 1 has none: drop such rows or fill them in"),
        ({"y": [0.0, np.nan, 1.0]}, "y must have a label in every row; row 1 has none"),
        ({"y": np.array(["1", 1, 2], object)}, r"labels must be of one type.*y has int, str: convert them"),
        ({"y": [["a", "b"]] * 3}, r"y must have one label per row; got shape \(3, 2\)"),
        ({"device": [0.0, np.nan, 1.0]}, "device must name a device in every row; row 1 has none: drop such rows"),
        ({"device": np.array(["a", "b", None], object)}, "row 2 has none"),
        ({"device": [[0], [1], [2]]}, r"got arrays of shapes \(3, 2\), \(3,\) and \(3, 1\)"),
        (
            {"test": [True]},
            r"one entry for each of the 3 rows, true for test rows; got an array of shape \(1,\)",
        ),
        (
            {"device": [0, 1, 1], "test": [True, False, False]},
            "device 0 must have training samples; got none: leave its rows out, or make some of them training rows",
        ),
    ],
)
def test_a_mistake_gets_a_sentence_that_says_what_to_do(arrays, sentence):
    with pytest.raises(DataError, match=sentence):
        Population.from_arrays(**{"x": np.zeros((3, 2)), "y": [0, 1, 0], "device": [0, 0, 0], **arrays})


def test_real_numbers_are_no_labels_and_the_sentence_says_so():
    population = Population.from_arrays(np.zeros((3, 2)), [0.0, 1.0, 0.0], [0, 0, 0])
    with pytest.raises(ConfigError, match=r"real numbers, not labels; got 'softmax_regression': for labels give y as"):
        fedprox.train({"devices": {"per_round": 1}}, population=population)


def test_labels_are_numbered_once_over_all_devices_and_stay_with_the_data(tmp_path):
    population = Population.from_arrays(np.eye(6), ["b", "b", "c", "c", "a", "a"], [0, 0, 1, 1, 2, 2])
    assert (population.classes, population.labels) == (3, ("a", "b", "c"))
    assert population.train.y.tolist() == [1, 1, 2, 2, 0, 0]
    stored = open_population(save_population(population, tmp_path / "stored"))
    assert stored.labels == ("a", "b", "c")
    assert repartition(stored, "iid", 2).labels == ("a", "b", "c")


def test_one_hot_rows_state_all_classes():
    population = Population.from_arrays(np.eye(2), np.eye(4)[[1, 2]], [0, 0])
    assert (population.classes, population.labels) == (4, None)
    assert sorted([*population.train.y, *population.test.y]) == [1, 2]
    assert Population.from_arrays(np.eye(2), np.eye(3)[[1, 2]], [0, 0], labels=["a", "b", "c"]).classes == 3


def test_what_is_given_classes_or_labels_is_not_numbered():
    given = Population.from_arrays(np.eye(2), [1, 2], [0, 0], classes=4)
    assert (given.classes, given.labels, given.train.y.tolist()) == (4, None, [1, 2])
    named = Population.from_arrays(np.eye(2), [1, 2], [0, 0], labels=["a", "b", "c"])
    assert (named.classes, named.labels, named.train.y.tolist()) == (3, ("a", "b", "c"), [1, 2])
    with pytest.raises(DataError, match="labels must be below 2, the number of classes; device 0, row 1 has 2"):
        Population.from_arrays(np.eye(2), [1, 2], [0, 0], labels=["a", "b"])
    with pytest.raises(DataError, match="labels must be integers >= 0; device q, row 0 has -1"):
        Population.from_arrays([[1.0], [2.0]], [0, -1], ["p", "q"], classes=2)
    alone = DeviceData.from_arrays(0, np.eye(2), [1, 2]).population
    assert (alone.classes, alone.labels, alone.train.y.tolist()) == (3, None, [1, 2])


def test_a_leaf_folder_is_not_numbered(write_leaf):
    folder = write_leaf({"a": ([[1.0], [2.0]], [1, 2])}, {"a": ([[1.0]], [1])})
    population = data.load(Config.from_dict({"data": {"name": "leaf", "path": str(folder)}}))
    assert (population.classes, population.labels) == (3, None)


def test_other_data_is_numbered_as_the_model_knows_it():
    other = Population.from_arrays(np.eye(4), ["c", "c", "b", "b"], [0, 0, 0, 0], test=[0, 1, 0, 1])
    found = aligned(other, ("a", "b", "c"), classes=3)
    assert (found.train.y.tolist(), found.test.y.tolist(), found.classes) == ([2, 1], [2, 1], 3)
    digits = Population.from_arrays(np.eye(2), [3, 7], [0, 0])
    assert digits.labels == (3, 7)
    assert aligned(digits, None, classes=10).train.y.tolist() == [3, 7]
    with pytest.raises(DataError, match="labels must be among 'a', 'b', which the model knows; got 'c'"):
        aligned(other, ("a", "b"), classes=2)


def test_a_regression_gets_the_numbers_themselves():
    population = Population.from_arrays(np.eye(3), [5, 9, 5], [0, 0, 0])
    assert population.labels == (5, 9)
    restored = targets(population)
    assert (restored.train.y.tolist(), restored.classes, restored.labels) == ([5.0, 9.0, 5.0], 0, None)


def frame():
    return {
        "age": np.arange(8.0),
        "size": np.arange(8) * 2,
        "kind": ["cat", "dog"] * 4,
        "owner": ["b", "a", "b", "a"] * 2,
        "held": [False] * 6 + [True] * 2,
    }


def tables():
    yield frame()
    pandas = pytest.importorskip("pandas")
    yield pandas.DataFrame(frame())
    yield pandas.DataFrame(frame()).astype({"kind": "category", "owner": "category"})
    pyarrow = pytest.importorskip("pyarrow")
    yield pyarrow.table({name: list(column) for name, column in frame().items()})


def test_tables_with_named_columns():
    for table in tables():
        population = Population.from_frame(table, x=["age", "size"], y="kind", device="owner", test="held")
        assert (population.devices, population.name(0), population.labels) == (2, "a", ("cat", "dog"))
        assert population.train.of(0)[0].tolist() == [[1, 2], [3, 6], [5, 10]]
        assert population.test.of(1)[0].tolist() == [[6, 12]]
        others = Population.from_frame(table, y="kind", device="owner", test="held")  # x: all that have no other role
        np.testing.assert_array_equal(others.train.x, population.train.x)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"y": "knid"}, "there must be a column 'knid' for y; got age, size, kind, owner, held; did you mean `kind`?"),
        ({"device": "who"}, "there must be a column 'who' for device"),
        ({"x": ["agee"]}, "there must be a column 'agee' for x.*did you mean `age`?"),
        ({"x": ["owner"]}, r"x must be numbers; column 'owner' has .* name the columns of x"),
        ({"test": "size"}, "the column 'size' for test must be true or false in every row"),
    ],
)
def test_a_column_that_does_not_fit(options, sentence):
    with pytest.raises(DataError, match=sentence):
        Population.from_frame(frame(), **{"x": ["age"], "y": "kind", "device": "owner", **options})


def test_what_is_no_table():
    with pytest.raises(DataError, match=r"a table must have named columns.*got list"):
        Population.from_frame([1, 2])
    with pytest.raises(DataError, match="column 'age', row 1 has none: drop such rows or fill them in"):
        Population.from_frame({"age": [1.0, np.nan], "y": [0, 1], "device": [0, 0]})


def test_a_column_of_images():
    population = Population.from_frame(
        {"image": [np.full((4, 4), k) for k in range(3)], "y": [0, 1, 1], "device": [0, 0, 1]}, x="image"
    )
    assert population.shape == (4, 4)
    with pytest.raises(DataError, match="x must have one shape in all rows; column 'x' has"):
        Population.from_frame({"x": [[1], [1, 2]], "y": [0, 1], "device": [0, 0]}, x="x")


class Pairs:
    """What PyTorch calls a map-style data set."""

    def __len__(self):
        return 4

    def __getitem__(self, row):
        if row >= 4:
            raise IndexError
        return np.full((2, 2), row, np.float32), np.int64(row % 2)


def test_data_sets_of_other_libraries():
    assert read_dataset(Pairs(), device=["a", "a", "b", "b"]).devices == 2
    pooled = read_dataset(Pairs())
    assert (pooled.devices, pooled.name(0), pooled.shape) == (1, "all", (2, 2))
    torch = pytest.importorskip("torch")
    tensors = torch.utils.data.TensorDataset(torch.eye(4), torch.tensor([3, 1, 3, 1]))
    assert read_dataset(tensors, device=np.arange(4) % 2).labels == (1, 3)

    class Hugging(dict):
        column_names = ("x", "label", "who")
        features: Any = None

    columns = Hugging(x=[[1.0, 2.0]] * 4, label=["p", "q"] * 2, who=[0, 0, 1, 1])
    assert read_dataset(columns, "who", y="label").labels == ("p", "q")
    assert read_dataset(columns, [0, 1, 2, 2], y="label").devices == 3
    columns.features = {"label": SimpleNamespace(names=["cat", "dog", "eel"])}
    columns["label"] = [0, 2, 0, 2]
    for named in (read_dataset(columns, "who", y="label"), read_dataset(columns, [0, 1, 2, 2], y="label")):
        assert (named.labels, named.classes) == (("cat", "dog", "eel"), 3)
    with pytest.raises(DataError, match=r"a column 'y' for y; got x, label, who \(y=, or `data.y_column`"):
        read_dataset(columns, [0, 1, 2, 2])


class Streamed:
    column_names = ("x", "y")


class Splits(dict):
    column_names: ClassVar = {"train": ["x", "y"], "test": ["x", "y"]}


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (Splits(), r"must be one split of a data set, such as data\['train'\]; got all of them"),
        (Streamed(), "must have a length.*got Streamed: load it without streaming"),
        (
            {"x": [1.0], "y": [0]},
            r"a column .device. for device; got x, y \(device=, or .* one device\)",
        ),
        ({"x": [1.0, None], "y": [0, 1]}, "x must have a number in every row; column 'x', row 1 has none"),
    ],
)
def test_a_table_that_cannot_be_read(table, sentence):
    with pytest.raises(DataError, match=sentence):
        fedprox.Population.from_frame(table, x=["x"], device="device" if "device" in sentence else None)


def test_an_iterator_of_rows():
    assert read_iterator([("a", [1.0], "yes"), ("b", [2.0], "no")]).labels == ("no", "yes")


@pytest.mark.parametrize(
    ("dataset", "options", "sentence"),
    [
        (iter([]), {}, "a data set must have a length.*read_iterator"),
        ([], {}, "at least one item"),
        ([(1, 2, 3)], {}, r"an item must be a pair \(x, y\); item 0 is a tuple"),
        ([([1.0], 0), ([1.0, 2.0], 1)], {}, r"x must have the shape \(1,\) of the first item; item 1 has \(2,\)"),
        (Pairs(), {"device": "who"}, "device must be an array with one entry per item"),
    ],
)
def test_a_data_set_that_does_not_fit(dataset, options, sentence):
    with pytest.raises(DataError, match=sentence):
        read_dataset(dataset, **options)


CSV = "who,age,weight,kind,held\nanna,20,1.5,cat,false\nbert,30,2.5,dog,false\nanna,40,3,dog,true\n"


@pytest.fixture
def csv(tmp_path):
    def write(text=CSV, name="data.csv"):
        (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
        return str(tmp_path / name)

    return write


def test_a_csv_file_by_config(csv):
    columns = {"y_column": "kind", "device_column": "who", "test_column": "held"}
    for name in ("data.csv", "data.csv.gz"):
        population = data.load(Config.from_dict({"data": {"name": "csv", "path": csv(name=name), **columns}}))
        assert (population.devices, population.name(1), population.labels) == (2, "bert", ("cat", "dog"))
        assert population.train.of(0)[0].tolist() == [[20.0, 1.5]]
        assert population.test.of(0)[0].tolist() == [[40.0, 3.0]]
    chosen = {**columns, "x_columns": ["weight"]}
    assert data.load(Config.from_dict({"data": {"name": "csv", "path": csv(), **chosen}})).shape == (1,)


def test_a_csv_file_without_devices_can_be_divided(csv):
    text = "a,b,y\n" + "".join(f"{k},{k * k},{'no' if k % 2 else 'yes'}\n" for k in range(60))
    settings = {"name": "csv", "path": csv(text), "device_column": "", "partition": "dirichlet", "devices": 4}
    population = data.load(Config.from_dict({"data": settings}))
    assert (population.devices, population.labels) == (4, ("no", "yes"))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "must have a header line with the names of its columns"),
        ("y,device\n", "must have a header line"),
        ("y,device,y\n1,2,3\n", "its columns must have different names; 'y' appears twice"),
        ("a,y,device\n1,2\n", "every row must have 3 entries, as the header line; line 2 has 2"),
        ("a,label,device\n1,2,3\n", "there must be a column 'y' for y; got a, label, device"),
        ("y,device\n1,2\n", "there must be columns for x besides y, device"),
        ("a,y,device\nred,0,1\n", "x must be numbers; column 'a' has"),
        ("a,y,device\n1,0,1\n,1,1\n", "column 'a', row 1 has none"),
        ("a,y,device\n1,cat,1\n2,,1\n", "y must have a label in every row; row 1 has none"),
        ("a,y,device\n1,0,anna\n2,1,\n", "device must name a device in every row; row 1 has none"),
        ('a,y,device\n"1,0,1\n', "is not a readable CSV file in UTF-8"),
    ],
)
def test_a_broken_csv_file(csv, text, sentence):
    path = csv(text)
    with pytest.raises(DataError, match=f"data file .*data.csv: .*{sentence}"):
        read_csv(path)


def test_a_csv_file_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match=r"no.csv: it does not exist"):
        read_csv(tmp_path / "no.csv")


@pytest.fixture
def animals():
    random = np.random.default_rng(0)
    kinds = np.array(["cat", "dog", "owl"])
    y = random.integers(0, 3, 90)
    x = (np.eye(3)[y] + 0.1 * random.normal(size=(90, 3))).astype(np.float32)
    return x, kinds[y], np.arange(90) % 3


PLAN = {"rounds": 6, "solver": {"learning_rate": 1.0, "epochs": 3}, "devices": {"per_round": 3}}


def test_names_of_labels_go_with_the_run_and_come_back(animals, tmp_path):
    x, y, device = animals
    np.savez(tmp_path / "animals.npz", x=x, y=y, device=device)
    settings = {**PLAN, "data": {"name": "npz", "path": str(tmp_path / "animals.npz")}}
    result = fedprox.train(settings, out=tmp_path / "run")
    assert result.summary["labels"] == ["cat", "dog", "owl"]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["labels"] == ["cat", "dog", "owl"]
    assert read_tensors(tmp_path / "run" / "model.safetensors")[1] == {"labels": ["cat", "dog", "owl"]}
    assert (predict(tmp_path / "run", x) == y).mean() > 0.9
    birds = Population.from_arrays(x[y != "cat"], y[y != "cat"], device[y != "cat"])  # owl is class 1 here, 2 there
    assert evaluate(tmp_path / "run", birds)["test_accuracy"] > 0.9
    with pytest.raises(DataError, match="labels must be among 'cat', 'dog', 'owl', which the model knows; got 'cow'"):
        evaluate(tmp_path / "run", Population.from_arrays(x[:3], ["cat", "cow", "dog"], [0, 0, 0]))


def test_a_saved_model_with_other_labels_is_no_start(animals, tmp_path):
    x, y, device = animals
    fedprox.train(PLAN, population=Population.from_arrays(x, y, device), out=tmp_path / "run")
    init = {**PLAN, "model": {"init": str(tmp_path / "run")}}
    fedprox.train(init, population=Population.from_arrays(x, y, device))
    renamed = Population.from_arrays(x, np.char.upper(y), device)
    with pytest.raises(ConfigError, match=r"trained with the labels of the data, 'CAT', 'DOG', 'OWL'; got .*has 'cat'"):
        fedprox.train(init, population=renamed)
    numbered = Population.from_arrays(x, encode(y)[0], device)
    with pytest.raises(ConfigError, match=r"labels of the data, the numbers from 0 on; got .*, which has 'cat', 'dog'"):
        fedprox.train(init, population=numbered)


def test_a_regression_on_integers_sees_the_integers():
    x = np.arange(12, dtype=np.float32)[:, None] / 10
    population = Population.from_arrays(x, np.arange(12) + 5, np.arange(12) % 2)
    plan = {"rounds": 1, "model": {"name": "linear_regression"}, "devices": {"per_round": 2}}
    result = fedprox.train(plan, population=population)
    squares = (population.train.y + 5.0) ** 2
    assert result.history[0]["train_loss"] == pytest.approx(squares.mean() / 2)


def test_b_and_the_variance_have_axes_of_their_own():
    population = data.synthetic(1.0, 1.0)
    found = Heterogeneity(Statistics(30, 1, 1.0, 0.0), 1, 0, 0, 2.0, dissimilarity=3.0, gradient_variance=500.0)
    axes: Any = plot_heterogeneity(population, found).axes
    heights = {each.get_xticklabels()[0].get_text(): each.patches[0].get_height() for each in axes[2:4]}
    assert heights == {"B": 3.0, "gradient\nvariance": 500.0}


def test_the_picture_names_labels_and_has_whole_sizes():
    y = np.array(["cat", "dog"] * 8)
    population = fedprox.Population.from_arrays(np.zeros((16, 2)), y, np.repeat(np.arange(4), 4))
    found = Heterogeneity(Statistics(4, 16, 4.0, 0.0), 12, 4, 0, 2.0)
    sizes, labels, *_ = plot_heterogeneity(population, found).axes
    assert [tick.get_text() for tick in labels.get_yticklabels()] == ["cat", "dog"]
    assert sizes.get_xscale() == "linear"
    assert all(tick == round(tick) for tick in sizes.get_xticks())


def test_a_parquet_file_with_named_columns(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {name: list(column) for name, column in frame().items()}
    columns["image"] = [[float(k), 0.0] for k in range(8)]
    parquet.write_table(pyarrow.table(columns), tmp_path / "data.parquet")
    named = {"y_column": "kind", "device_column": "owner", "test_column": "held"}
    for x_columns, expected in ((["age", "size"], [[1, 2], [3, 6], [5, 10]]), (["image"], [[1, 0], [3, 0], [5, 0]])):
        settings = {"name": "arrow", "path": str(tmp_path / "data.parquet"), "x_columns": x_columns, **named}
        population = data.load(Config.from_dict({"data": settings}))
        assert (population.labels, population.name(0)) == (("cat", "dog"), "a")
        assert population.train.of(0)[0].tolist() == expected
    with pytest.raises(DataError, match="must have the columns kind, who; who is missing, and it has age, "):
        read_arrow(tmp_path / "data.parquet", y_column="kind", device_column="who")
    with pytest.raises(ConfigError, match=r"`data.x_columns` must be a list of column names, such as \[.*\]; got 3"):
        Config.from_dict({"data": {"name": "csv", "path": "x", "x_columns": 3}})


ROWS = {"a": [1.0, 2.0, 3.0, 4.0], "b": [0.0, 1.0, 0.0, 1.0], "kind": ["x", "y", "x", "y"], "who": ["p", "p", "q", "q"]}


def check_rows(population):
    assert (population.devices, population.labels, population.shape) == (2, ("x", "y"), (2,))
    assert sorted(np.concatenate([population.train.x, population.test.x])[:, 0].tolist()) == ROWS["a"]


def test_a_polars_frame_is_a_population():
    polars = pytest.importorskip("polars")
    check_rows(Population.from_frame(polars.DataFrame(ROWS), x=["a", "b"], y="kind", device="who"))


@pytest.mark.parametrize(("y", "only"), [(["a"] * 8, "'a'"), ([0] * 8, "0")])
def test_labels_of_a_single_class_are_refused_by_the_models_of_the_library(y, only):
    population = Population.from_arrays(np.arange(16.0).reshape(8, 2), y, [0, 1] * 4)
    with pytest.raises(DataError, match=f"'softmax_regression' must have at least two classes .* are {only}"):
        fedprox.train({"rounds": 1, "devices": {"per_round": 2}}, population=population)


@pytest.mark.parametrize("x", [(), ["x"], "x"])
def test_a_single_column_of_lists_is_the_features(x):
    table = {"x": [[1.0, 2.0], [3.0, 4.0]], "y": ["a", "b"], "device": ["p", "q"]}
    assert Population.from_frame(table, x).shape == (2,)


@pytest.mark.parametrize(
    ("examples", "sentence"),
    [
        ([([1.0], 0)], r"an example must be a triple \(device, x, y\); example 0 is a tuple of 2"),
        ([(0, [1.0], 0), (None, [1.0], 1)], "device must name a device in every example; example 1 has none"),
    ],
)
def test_an_iterator_of_something_else_gets_a_sentence(examples, sentence):
    with pytest.raises(DataError, match=sentence):
        read_iterator(examples)


def test_a_loader_in_place_of_its_data_set_gets_a_sentence():
    class Loader:
        dataset: ClassVar[list[Any]] = []

        def __len__(self) -> int:
            return 3

    with pytest.raises(DataError, match=r"must give its items by number, .*; got Loader: use its `dataset`"):
        read_dataset(Loader())


def test_labels_of_a_single_device_are_never_numbered():
    x = np.zeros((3, 2))
    with pytest.raises(DataError, match=r"y of a device must be class numbers .*; device 4 has 'b': number the labels"):
        DeviceData.from_arrays(4, x, ["b", "b", "b"])
    one_hot = DeviceData.from_arrays(4, x, np.eye(3)[[1, 1, 1]])
    assert (one_hot.population.classes, one_hot.population.labels) == (2, None)


def test_real_labels_with_a_classifier_get_a_sentence():
    population = Population.from_arrays(np.zeros((8, 2)), [0.0, 1.0] * 4, [0, 1] * 4)
    with pytest.raises(ConfigError, match=r"y has real numbers: give class labels as integers or text$"):
        fedprox.train({"devices": {"per_round": 2}}, population=population, model=fedprox.models.mlp(2, 2))
