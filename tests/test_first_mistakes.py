"""Mistakes of a first hour with own data, an own model and own parts: each is one sentence that says what to do."""

import re
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedprox
from fedprox import Model, Population
from fedprox.config import Config
from fedprox.core.errors import ConfigError, DataError, RunError
from fedprox.data import read_csv
from fedprox.methods import fedprox as fedprox_method
from fedprox.models import softmax_regression
from fedprox.population.repartition import repartition

X = np.arange(24.0).reshape(12, 2) / 24
Y = np.arange(12) % 2
DEVICE = np.arange(12) % 3
POPULATION = Population.from_arrays(X, Y, DEVICE)
SHORT = {"rounds": 1, "devices": {"per_round": 2}, "solver": {"epochs": 1}}


@pytest.mark.parametrize(
    ("x", "sentence"),
    [
        ([[1, 2], [3]] * 6, "x must have one shape in all rows"),
        (np.ma.masked_array(X, X > 0.5), "x must have a value in every row; got a masked array"),
        ([[1, None]] * 12, "x must be real numbers; row 0 has NoneType"),
        ([["a", "b"]] * 12, "x must be real numbers; got text"),
        ({"a": X}, "x must be an array with a row for each example; got dict: `Population.from_frame`"),
        ("data.csv", "x must be an array with a row for each example; got str"),
        (X * 1e200, "x must be finite numbers in single precision; device 0, row 0"),
    ],
)
def test_features_that_are_no_array_of_numbers(x, sentence):
    with pytest.raises(DataError, match=sentence):
        Population.from_arrays(x, Y, DEVICE)


def test_arrays_of_python_objects_that_are_numbers_are_understood():
    assert Population.from_arrays(X.astype(object), Y, DEVICE).train.x.tolist() == POPULATION.train.x.tolist()
    names = Population.from_arrays(X, Y, np.array(["é".encode(), b"b", b"c"] * 4)).names
    assert names == ["b", "c", "é"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"device": np.array([1, "1", 2] * 4, object)}, "device must be of one type, since '1' and 1 differ"),
        ({"device": np.array([b"\xff", b"a"] * 6)}, "device must be text in UTF-8"),
        ({"y": np.array([b"\xff", b"a"] * 6)}, "y must be text in UTF-8"),
        ({"y": Y * 10**12}, "integer labels >= 0 are class numbers and must be at most 1048575; .*: give them as text"),
        ({"classes": 2.5}, "classes must be an integer from 1 to 1048576; got 2.5"),
        ({"classes": 2, "y": Y / 1}, "y must be class numbers, integers, where classes= or labels= is given"),
        ({"labels": ["a", "a"]}, "labels must name each class once"),
        ({"labels": ["a", "b"], "classes": 5}, "classes must be 2, the number of labels given; got 5"),
        ({"seed": -1}, "seed must be an integer >= 0"),
        ({"test": ["True"] * 12}, r"test must be true or false .*, such as \['True'\]"),
    ],
)
def test_labels_devices_and_marks_that_would_be_taken_wrongly(arguments, sentence):
    with pytest.raises(DataError, match=sentence):
        Population.from_arrays(**{"x": X, "y": Y, "device": DEVICE, **arguments})


TABLE = {"a": X[:, 0], "b": X[:, 1], "y": Y, "device": DEVICE}


def test_tables_whose_columns_cannot_be_told_apart_or_leak_labels():
    pandas = pytest.importorskip("pandas")
    for names, sentence in (("aay", "'a' appears twice"), ([0, 1, 2], "text as their names; got 0: rename them")):
        with pytest.raises(DataError, match=sentence):
            Population.from_frame(pandas.DataFrame(np.c_[X, Y], columns=list(names)), device=None)
    with pytest.raises(DataError, match="x must not have the labels among its columns"):
        Population.from_frame(TABLE, x=["a", "y"])
    with pytest.raises(DataError, match="'a' appears twice"):
        Population.from_frame(TABLE, x=["a", "a"])
    with pytest.raises(DataError, match="the columns of x must have one length; got 2, 12 rows"):
        Population.from_frame({**TABLE, "b": [1.0, 2.0]})
    column = pandas.array([None, *(Y[1:] > 0)], dtype="boolean")
    with pytest.raises(DataError, match="column 'a', row 0 has none"):
        Population.from_frame(pandas.DataFrame({**TABLE, "a": column}))
    with pytest.raises(DataError, match="column 'a' has text, such as 'NA' in row 3"):
        Population.from_frame({**TABLE, "a": np.array(["1", "2", "3", "NA"] * 3)})


def test_rows_of_a_lazy_table_must_be_collected():
    polars = pytest.importorskip("polars")
    with pytest.raises(DataError, match=r"got LazyFrame: collect\(\) it first"):
        Population.from_frame(polars.LazyFrame(TABLE))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a;y;device\n1;2;3\n", "separated by commas; its header has ';'"),
        (",a,y,device\n0,1,0,0\n1,2,1,0\n", "one has none .the index of a DataFrame.*`data.x_columns`"),
        ("# notes\na,y,device\n", "every row must have one entry, as the header line; line 2 has 3"),
        ("é,y\n".encode("latin-1"), "not a readable CSV file in UTF-8: .*: save it as UTF-8"),
    ],
)
def test_csv_files_of_another_form(tmp_path, text, sentence):
    (tmp_path / "my data.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=sentence):
        read_csv(tmp_path / "my data.csv")


def scores(params, x):
    return x @ params["w"]


def loss(params, x, y):
    z = scores(params, x)
    return jax.nn.logsumexp(z, axis=1) - jnp.take_along_axis(z, y[:, None], axis=1)[:, 0]


def predict(params, x):
    return jnp.argmax(scores(params, x), axis=1)


def zeros(key):
    return {"w": jnp.zeros((2, 2))}


@pytest.mark.parametrize(
    ("functions", "sentence"),
    [
        ({"loss": lambda w, x, y: predict(w, x) != y}, "must be floating-point numbers, which have gradients"),
        ({"loss": lambda w, x, y: np.log(np.asarray(x))[:, 0]}, "must be written with jax.numpy"),
        ({"loss": lambda w, x: x}, "the loss of model 'm', called with .* failed with TypeError"),
        ({"loss": lambda w, x, y: w["v"]}, r"failed with KeyError: 'v' \(test_first_mistakes.py, line \d+\)"),
        ({"loss": "cross_entropy"}, "`loss` of a model must be a function; got 'cross_entropy'"),
        ({"init": lambda: 0}, "init of model 'm', called with a key, failed with TypeError"),
        ({"init": lambda key: {"w": jnp.zeros((2, 2), int)}}, "must be arrays of float32; 'w' has int32"),
        ({"init": lambda key: None}, "must return a tree of arrays; got no array"),
        ({"predict": scores}, r"must be one label per example, integers .* it has shape \(2, 2\) of float32"),
        ({"predict": lambda w, x: predict(w, x)[:, None]}, r"must be one label per example, .* shape \(2, 1\)"),
    ],
)
def test_functions_of_a_model_are_tried_before_the_first_round(functions, sentence):
    model = Model("m", **{"init": zeros, "loss": loss, "predict": predict, **functions})
    with pytest.raises(ConfigError, match=sentence):
        fedprox.train(SHORT, population=POPULATION, model=model)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (softmax_regression(1, 2), r"must have 1 numbers each for .*; they have the shape \(2,\)"),
        (softmax_regression(3, 2), "must have 3 numbers each for the model 'softmax_regression'"),
        (softmax_regression(2, 1), "must be below 1, the number of classes of the model .*; the data have 2 classes"),
    ],
)
def test_a_softmax_regression_for_other_data_is_refused(model, sentence):
    with pytest.raises(ConfigError, match=sentence):
        fedprox.train(SHORT, population=POPULATION, model=model)


def test_a_model_with_too_few_outputs_is_named_as_the_cause():
    model = Model("m", lambda key: {"w": jnp.zeros((2, 1))}, loss, predict)
    with pytest.warns(UserWarning, match="an output for each class .the data have 2."):
        fedprox.train(SHORT, population=POPULATION, model=model)


@pytest.mark.parametrize(
    ("objects", "sentence"),
    [
        ({"population": X}, r"`population` must be a Population; got ndarray: make one with Population.from_arrays"),
        ({"model": "cnn"}, "`model` must be a fedprox.Model; got 'cnn': name a built-in one in the config"),
        ({"model": Model}, "`model` must be a fedprox.Model; .*: make one"),
        ({"method": "fedavg"}, "`method` must be a Method; got 'fedavg': a name belongs into the config"),
        ({"method": type(fedprox_method())}, "got the class FedProx: make an object of it"),
        ({"solver": "sgd"}, "`solver` must be an object with `name` and `solve`.*: a name belongs into the config"),
        ({"metrics": max}, "`metrics` must be a dict of functions by name"),
        ({"callbacks": print}, "`callbacks` must be a list of functions"),
        ({"track": None}, "`track` must be the name of a tracker, or a list of names; got None"),
        ({"out": 3}, "`out` must be the path of a folder; got 3"),
        ({"resume": True}, "`resume` must be used with `out`, the run folder"),
    ],
)
def test_objects_of_another_kind_than_train_needs(objects, sentence):
    with pytest.raises(ConfigError, match=sentence):
        fedprox.train(SHORT, **{"population": POPULATION, **objects})


@pytest.mark.parametrize(
    ("settings", "objects", "sentence"),
    [
        (
            {"data": {"partition": "dirichlet", "devices": 4}},
            {"population": POPULATION},
            "`data.partition` must be left out with `population`, which has devices of its own: divide it with "
            "`fedprox.data.repartition`; got 'dirichlet'",
        ),
        (
            {"solver": {"momentum": 0.9}},
            {"solver": fedprox.solvers.sgd()},
            "`solver.momentum` must be left out with `solver`, which has settings of its own; got 0.9",
        ),
    ],
)
def test_settings_that_a_given_object_would_not_get(settings, objects, sentence):
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        fedprox.train({**SHORT, **settings}, **objects)


def test_settings_as_users_write_them_in_python():
    assert Config.of({"rounds": np.int64(3), "method": {"mu": np.float32(0.5)}}).rounds == 3
    with pytest.raises(ConfigError, match=r'give `method.mu` as \{"method": \{"mu": ...\}\}'):
        Config.of({"method.mu": 1.0})
    with pytest.raises(ConfigError, match="a config must be a Config, a dict of settings, a path or the name"):
        Config.of(None)
    with pytest.raises(ConfigError, match=r"`data.devices` must be an integer; got '3'"):
        repartition(POPULATION, "iid", "3")


def test_images_of_integers_and_channels_that_come_first():
    images = Population.from_arrays(np.ones((12, 4, 4), np.int8), Y, DEVICE)
    model = fedprox.models.cnn((4, 4), 2)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    assert jax.eval_shape(model.predict, shapes, images.train.x).shape == (len(images.train),)
    with pytest.raises(ConfigError, match=r"move the channels to the end, np.moveaxis\(x, 1, -1\)"):
        fedprox.models.cnn((3, 32, 32), 10)


PARTS = """
from dataclasses import dataclass

import jax
import numpy as np

from fedprox import Method


@dataclass(frozen=True)
class Shapes(Method):
    name: str = "shapes"

    def merge(self, server, params, averaged, summed):
        return jax.tree.map(lambda leaf: leaf[:1], averaged), server


class Nothing(Method):
    def merge(self, server, params, averaged, summed):
        pass


class Names(Method):
    def merge(self, server, params, averaged, summed):
        return jax.tree.leaves(averaged), server


class Raises(Method):
    def merge(self, server, params, averaged, summed):
        raise KeyError("momentum")


def metric(labels, predictions):
    raise ValueError("no labels")


def stops(history):
    return history[0]["los"] < 1


def sampler():
    return [0, 1]


def broken(population):
    raise ValueError("no weights")


def takes_nothing():
    return None


class Undecorated(Method):
    strength: float = 0.5
    name = "undecorated"


def average(replies, weights):
    return replies[0]


class Solver:
    name = "half"

    def solve(self, local):
        return local.start
"""


@pytest.mark.parametrize(
    ("settings", "error", "sentence"),
    [
        (
            {"method": {"name": "first_parts:Shapes"}},
            RunError,
            r"merge of the method 'shapes' .* shapes of the model, .*'bias': \(10,\)",
        ),
        ({"method": {"name": "first_parts:made", "kind": "Nothing"}}, RunError, r"must return \(params, server\)"),
        (
            {"method": {"name": "first_parts:made", "kind": "Names"}},
            RunError,
            "params with the names and shapes of the m",
        ),
        ({"method": {"name": "first_parts:made", "kind": "Raises"}}, RunError, "KeyError: 'momentum' .first_parts.py"),
        ({"measure": {"metrics": ["first_parts:metric"]}}, RunError, "the metric 'metric' failed with ValueError: no"),
        ({"stop": {"rule": "first_parts:stops"}}, RunError, "the stopping rule failed with KeyError: 'los'"),
        ({"solver": {"name": "first_parts:Solver"}}, RunError, r"solver half .* must return \(params, steps\)"),
        ({"devices": {"sampling": "first_parts:sampler"}}, ConfigError, "must name a function of view, .* gives list"),
        ({"model": {"name": "first_parts:broken"}}, ConfigError, "`model.name` = .* failed with ValueError: no w"),
        ({"model": {"name": "first_parts:takes_nothing"}}, ConfigError, "whose first arguments are population"),
        (
            {"method": {"name": "first_parts:Undecorated"}},
            ConfigError,
            "write `@dataclass.frozen=True.` above it",
        ),
        (
            {"solver": {"schedule": "first_parts:average"}},
            ConfigError,
            "this argument; a function is called with learning_rate, round, rounds",
        ),
        (
            {"merge": {"rule": "first_parts:average"}},
            ConfigError,
            "a callable that returns the part and needs t",
        ),
    ],
)
def test_parts_of_a_users_module_that_fail(tmp_path, monkeypatch, settings, error, sentence):
    made = "\n\ndef made(kind: str = ''):\n    return globals()[kind](name=kind)\n"
    (tmp_path / "first_parts.py").write_text(textwrap.dedent(PARTS) + made)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(error, match=sentence):
        fedprox.train({"rounds": 1, "data": {"name": "synthetic_iid"}, "solver": {"epochs": 1}, **settings})


def test_an_optimiser_of_pytorch_is_given_as_a_class():
    torch = pytest.importorskip("torch")
    from fedprox.adapters.torch import from_torch

    module = torch.nn.Linear(2, 2)
    for optimiser in ("sgd", torch.optim.SGD(module.parameters(), lr=0.1)):
        with pytest.raises(ConfigError, match=r"`optimiser` must be a class, such as torch.optim.SGD"):
            from_torch(module, optimiser=optimiser)
    with pytest.raises(ConfigError, match=r"`optimiser`, called with parameters and lr, failed with TypeError"):
        from_torch(module, optimiser=lambda parameters: None)
    with pytest.raises(ConfigError, match=r"`module` must be a torch.nn.Module, not a class"):
        from_torch(torch.nn.Linear)


@pytest.mark.parametrize(
    ("build", "sizes", "problem"),
    [
        (fedprox.models.cnn, ((28, 28), 0), "`classes` must be an integer >= 1; got 0"),
        (fedprox.models.cnn, ((28, 28), "ten"), "`classes` must be an integer >= 1; got 'ten'"),
        (fedprox.models.mlp, (784, 10.0), "`classes` must be an integer >= 1; got 10.0"),
        (fedprox.models.softmax_regression, (True, 2), "`features` must be an integer >= 1; got True"),
    ],
)
def test_sizes_of_models_are_integers(build, sizes, problem):
    with pytest.raises(ConfigError) as found:
        build(*sizes)
    assert str(found.value) == problem


def test_the_shape_of_images_may_be_a_list():
    assert fedprox.models.cnn([28, 28], np.int64(10)) is fedprox.models.cnn((28, 28), classes=10)
