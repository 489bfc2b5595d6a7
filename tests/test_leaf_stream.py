import gzip
import json
import shutil
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedprox.core.errors import DataError
from fedprox.data.json_stream import open_json
from fedprox.data.leaf import read_leaf
from fedprox.data.shakespeare import ALPHABET
from shared_data import real


def _write(folder, part, content, name="all.json"):
    (folder / part).mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    (folder / part / name).write_bytes(text)


def _leaf(**users):
    return {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {name: {"x": x, "y": y} for name, (x, y) in users.items()},
    }


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(st.dictionaries(st.text(), values, max_size=5), st.sampled_from([None, 1, "\t"]))
def test_members_are_what_json_reads(tmp_path_factory, content, indent):
    file = tmp_path_factory.mktemp("json") / "x.json"
    file.write_text(json.dumps(content, indent=indent))
    with open_json(file) as root:
        assert {name: node.value() for name, node in root.members()} == content


def test_users_over_several_files_in_the_order_of_their_names(tmp_path):
    _write(tmp_path, "train", _leaf(b=([[1.0]], [0]), a=([[2.0]], [1])), "1.json")
    _write(tmp_path, "train", gzip.compress(json.dumps(_leaf(b=([[3.0]], [2]))).encode()), "2.json.gz")
    _write(tmp_path, "test", _leaf(a=([[4.0]], [1])))
    population = read_leaf(tmp_path)
    assert list(population.names) == ["a", "b"]
    assert population.train.of(1)[0].tolist() == [[1.0], [3.0]]
    assert population.test.of(0)[0].tolist() == [[4.0]]
    assert population.classes == 3


def test_a_user_with_test_data_alone_is_left_out_with_a_warning(tmp_path):
    _write(tmp_path, "train", _leaf(a=([[1.0]], [0])))
    _write(tmp_path, "test", _leaf(a=([[1.0]], [0]), z=([[1.0]], [0])))
    with pytest.warns(UserWarning, match="1 users have test data but no training data .* 'z'"):
        assert read_leaf(tmp_path).devices == 1


def test_characters_become_codes(tmp_path):
    _write(tmp_path, "train", _leaf(a=(["ab", "b "], [" ", "c"])))
    _write(tmp_path, "test", _leaf(a=(["ab"], [" "])))
    population = read_leaf(tmp_path)
    assert population.train.x.dtype == np.uint8
    assert [[ALPHABET[c] for c in row] for row in population.train.x] == [["a", "b"], ["b", " "]]
    assert "".join(ALPHABET[c] for c in population.train.y) == " c"
    assert population.classes == 80


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"users": ["a"], "user_data": {"a": {"x": [[1.0', "not valid JSON: the value must end at line 1"),
        (b"", "is empty"),
        (b"[1, 2]", "must be a LEAF object"),
        (b'{"users": ["a"]}', "must be a LEAF object"),
        (b'{"users": ["a"], "user_data": {"a": {"x": [[1,]], "y": [0]}}}', "not valid JSON"),
        (b'{"users": ["a"], "user_data": {"a": {"x": ["\xff"], "y": [0]}}}', r"not UTF-8 text \(byte"),
        (b'{"users" ["a"]}', "a colon is missing"),
        (b'{"users": ["a"] "b": 1}', "a comma or the end"),
        (b'{"users": ["a"], "user_data": {"a": {"x": [[1.0', r"line 1 \(byte 36\), in user 'a'; is the file cut off"),
        (b'{"users": ["a"],\n "user_data": {"a": {"x": [["\xc3\xa9",]], "y"', r"the value must end at .*, in user 'a'"),
        (b'{"users": ["a"],\n "user_data": {"a": {"x": ["\xc3\xa9",]}}}', r"at line 2 \(byte 4[89]\), in user 'a'"),
        (b'{"users": ["a"], "user_data": {"a": {"x": ["\xff"], "y": [0]}}}', r"\(byte 44\), in user 'a'"),
        (b'{"users": ["a", "user_data": {}}', "in member 'users'"),
        (b'{"users": ["a"], "user_data": {"a": {"x": [[%s]], "y": [0]}}}' % (b"1" * 5000), "4300 digits; .* user 'a'"),
        (b'{"users": ["a"], "user_data": {"a": {"x": %s1%s}}}' % (b"[" * 9999, b"]" * 9999), "too deeply .* user 'a'"),
        (_leaf(a=([[10**400]], [0])), "user 'a' must have examples that are numbers.* too large"),
        (_leaf(a=([[1.0]], [10**400])), "user 'a' must have labels that are numbers; one is too large"),
        (_leaf(a=([[1e300]], [0])), r"not a finite number \(row 0\)"),
        (_leaf(a=([[1.0]], [2**33])), "user 'a' must have labels below 1048576; row 0 has 8589934592"),
        (_leaf(a=([[1.0], [1.0]], [0, 2 * 10**9])), "below 1048576; row 1 has 2000000000"),
        (_leaf(a=([[1.0]], ["1"])), "user 'a' must have labels that are numbers; got a text"),
        (_leaf(a=([[1.0, "1"]], [1])), "must have examples that are numbers, all of one shape; got a text"),
        (_leaf(a=([[[1.0], [True]]], [1])), "got true or false"),
        (_leaf(a=([[None]], [1])), r"not a finite number \(row 0\)"),
        (_leaf(a=([[]], [1])), r"user 'a' must have examples that are lists of at least one number; got \[\] in row 0"),
        (_leaf(a=([1.0], [1])), "lists of at least one number; got 1.0 in row 0"),
        (
            {**_leaf(a=([[1.0]], [0])), "users": ["a", "a"], "num_samples": [1, 1]},
            "once; 'a' appears twice",
        ),
        (
            {**_leaf(a=([[1.0]], [0]), b=([[1.0]], [0])), "users": ["a"], "num_samples": [1]},
            "`user_data`; 'b' is missing",
        ),
        (
            b'{"users": ["a"], "user_data": {"a": {"x": [[1]], "y": [0]}, "a": {}}}',
            "once; 'a' appears twice",
        ),
        (_leaf(a=([[1.0]], [0.5])), "row 0 has 0.5"),
        (_leaf(a=([[1.0], [float("nan")]], [0, 1])), r"not a finite number \(row 1\)"),
        (_leaf(a=([[1.0], [1.0, 2.0]], [0, 1])), "all of one shape"),
        (_leaf(a=([[1.0]], [0, 1])), "lists x and y of one length; got 1 and 2"),
        (_leaf(a=(["ab", "c"], ["x", "y"])), "texts of 2 characters; row 1 does not"),
        (_leaf(a=(["ab"], ["xy"])), "row 0 has 'xy'"),
        ({**_leaf(a=([[1.0]], [0])), "num_samples": [2]}, "has 1 samples, but `num_samples` says 2"),
        ({**_leaf(a=([[1.0]], [0])), "users": ["a", "b"], "num_samples": [1, 1]}, "user 'b' must have `x` and `y`"),
    ],
)
def test_bad_files_are_named(tmp_path, content, message):
    _write(tmp_path, "train", content)
    _write(tmp_path, "test", _leaf(a=([[1.0]], [0])))
    with pytest.raises(DataError, match=message) as error:
        read_leaf(tmp_path)
    assert "all.json" in str(error.value)


def test_memory_is_of_the_numbers_not_of_the_text(tmp_path):
    rows, users = 50, 40
    x = np.random.default_rng(0).normal(size=(rows, 300)).tolist()
    _write(tmp_path, "train", _leaf(**{f"u{k}": (x, [0] * rows) for k in range(users)}))
    _write(tmp_path, "test", _leaf(u0=(x[:1], [0])))
    size = (tmp_path / "train" / "all.json").stat().st_size
    tracemalloc.start()
    population = read_leaf(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert population.devices == users
    assert peak < size  # decoding the whole would take several times the text


def test_the_files_of_another_tool(tmp_path):
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        shutil.copy(real(f"shakespeare/leaf_sample_MAB-Shapley_{part}.json.gz"), tmp_path / part / "all.json.gz")
    population = read_leaf(tmp_path)
    assert (population.devices, len(population.train), len(population.test)) == (10, 41_990, 3_881)
    assert population.shape == (80,)
    device = list(population.names).index("THE_TRAGEDY_OF_KING_LEAR_PHILOSTRATE")
    text = "".join(ALPHABET[code] for code in population.train.of(device)[0][0])
    assert text.startswith("Here, mighty Theseus.")
