"""What devices remember, on disk: segments, the store, and runs whose states do not fit into memory."""

import numpy as np
import pytest
import safetensors.numpy

import fedprox
from fedprox.core.errors import RunFolderError
from fedprox.runs import device_store
from fedprox.runs.checkpoint import devices_folder
from fedprox.runs.device_segments import Segment, SegmentReader, signature_of, verify_segment, write_segment
from fedprox.runs.device_store import DeviceStore, unlink_unused

LIKE = {"a": np.zeros((2, 3), np.float32), "b": np.zeros((), np.int64)}


def state(value):
    return {"a": np.full((2, 3), value, np.float32), "b": np.array(value, np.int64)}


def open_store(folder, segments=(), capacity=4, **more):
    return DeviceStore(folder, LIKE, segments=segments, capacity=capacity, **more)


def values(store):
    return {device: int(store[device]["b"]) for device in store}


def test_a_segment_is_a_safetensors_file_with_a_row_for_each_device(tmp_path):
    states = {7: state(1), 3: state(2)}
    segment = write_segment(tmp_path, "x.safetensors", [3, 7], signature_of(states[3]), states.__getitem__)
    arrays = safetensors.numpy.load_file(tmp_path / "x.safetensors")
    assert arrays["device"].tolist() == [3, 7]
    assert arrays["state.b"].tolist() == [2, 1]
    np.testing.assert_array_equal(arrays["state.a"][1], states[7]["a"])
    reader = SegmentReader(tmp_path, segment)
    np.testing.assert_array_equal(reader.state(0)["a"], states[3]["a"])
    assert reader.state(1)["a"].flags.writeable
    reader.close()
    assert int(reader.state(1)["b"]) == 1  # opened again
    verify_segment(tmp_path, segment)


def test_a_damaged_and_a_missing_segment_are_refused(tmp_path):
    segment = write_segment(tmp_path, "x.safetensors", [3], signature_of(state(1)), lambda _: state(1))
    content = bytearray((tmp_path / "x.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(RunFolderError, match=r"x\.safetensors is damaged"):
        verify_segment(tmp_path, segment)
    with pytest.raises(RunFolderError, match=r"y\.safetensors cannot be read: No such file"):
        verify_segment(tmp_path, Segment("y.safetensors", 1, segment.sha256))


def test_what_does_not_fit_into_memory_is_read_again_from_disk(tmp_path):
    store = open_store(tmp_path / "devices")
    for device in range(20):
        store[device] = state(device)
    assert len(store) == 20
    assert not store.is_small
    assert len(store._memory) <= 4
    assert values(store) == {device: device for device in range(20)}
    assert 20 not in store
    assert store.get(20) is None
    assert [*store] == [*range(20)]


def test_a_checkpoint_writes_what_has_changed_and_refers_to_the_rest(tmp_path):
    store = open_store(tmp_path / "devices", capacity=1000)
    for device in range(100):
        store[device] = state(0)
    first = store.save()
    store[5] = state(50)
    second = store.save()
    assert first == second[:1]
    assert [segment.rows for segment in second] == [100, 1]
    assert store.save() == second  # nothing has changed
    assert values(open_store(tmp_path / "devices", first)) == dict.fromkeys(range(100), 0)
    assert values(open_store(tmp_path / "devices", second)) == {**dict.fromkeys(range(100), 0), 5: 50}


def test_files_stay_few_and_below_about_twice_the_states(tmp_path):
    rng = np.random.default_rng(0)
    store, known = open_store(tmp_path / "devices", capacity=50), {}
    before = set()
    for round in range(300):
        for device in rng.choice(1000, 7, replace=False).tolist():
            store[device] = state(round)
            known[device] = round
        segments = store.save()
        files = {segment.file for segment in segments}
        unlink_unused(tmp_path / "devices", files | before)
        before = files
        assert len(segments) <= 12
        assert sum(segment.rows for segment in segments) <= 2 * len(known) + 7
    assert values(store) == known
    assert values(open_store(tmp_path / "devices", segments)) == known
    assert len(store) == len(known)


def test_states_of_several_types_are_kept_as_they_are(tmp_path):
    store = open_store(tmp_path / "devices", capacity=100)
    store[0] = state(1)
    store[1] = {"a": np.ones((2, 3), np.float64), "b": np.array(2.5)}
    again = open_store(tmp_path / "devices", store.save())
    assert again[1]["a"].dtype == np.float64
    assert float(again[1]["b"]) == 2.5
    assert again[0]["b"].dtype == np.int64


def test_states_of_another_model_are_refused(tmp_path):
    store = open_store(tmp_path / "devices")
    store[0] = state(1)
    with pytest.raises(ValueError, match="parameter 'c' is missing"):
        DeviceStore(tmp_path / "devices", {"c": np.zeros(1)}, segments=store.save())


def test_what_an_engine_gives_is_secured_when_it_is_written(tmp_path):
    store = open_store(tmp_path / "devices", secure=lambda states: {k: state(v) for k, v in states.items()})
    store[3] = 9
    assert store[3] == 9
    assert values(open_store(tmp_path / "devices", store.save())) == {3: 9}


CONFIG = {"rounds": 6, "data": {"name": "synthetic"}, "devices": {"per_round": 4}, "solver": {"epochs": 1}}


@pytest.mark.parametrize("name", ["scaffold", "feddyn", "ditto", "pfedme", "fedadmm", "scaffnew", "agnostic"])
@pytest.mark.filterwarnings("ignore:the theory of scaffnew:UserWarning")
def test_runs_have_the_same_bits_whether_states_fit_into_memory_or_not(name, tmp_path, monkeypatch):
    config = {**CONFIG, "method": {"name": name}, "checkpoint": {"every": 2}, "measure": {"every": 3}}
    whole = fedprox.train(config, out=tmp_path / "whole")
    monkeypatch.setattr(device_store, "_BYTES", 0)
    monkeypatch.setattr(DeviceStore, "__init__", _with_two(DeviceStore.__init__))
    fedprox.train({**config, "rounds": 4}, out=tmp_path / "spilled")
    spilled = fedprox.train(config, out=tmp_path / "spilled", resume=True)
    for one, other in zip(whole.params.values(), spilled.params.values(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert whole.history.column("train_loss") == spilled.history.column("train_loss")
    if whole.personal:
        assert whole.personal.keys() == dict(spilled.personal).keys()
        assert whole.history.column("personal_test_accuracy") == spilled.history.column("personal_test_accuracy")


def _with_two(init):
    def limited(self, *given, **named):
        init(self, *given, **{**named, "capacity": 2})

    return limited


def test_personal_parameters_are_on_disk_too(tmp_path):
    config = {**CONFIG, "personal": {"parameters": ["bias"]}}
    result = fedprox.train(config, out=tmp_path / "run")
    assert any(devices_folder(tmp_path / "run").iterdir())
    assert sorted(result.personal) == sorted({device for row in result.devices for device in row["device"]})


def test_a_damaged_state_of_a_device_means_the_checkpoint_before(tmp_path):
    out = tmp_path / "run"
    config = {**CONFIG, "method": {"name": "scaffold"}, "checkpoint": {"every": 2}, "devices": {"per_round": 30}}
    whole = fedprox.train(config, out=out)
    newest = max(devices_folder(out).iterdir())
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.warns(UserWarning, match=r"is damaged.*; continuing from round 4, the one before"):
        again = fedprox.train(config, out=out, resume=True)
    np.testing.assert_array_equal(whole.params["weight"], again.params["weight"])


def test_files_that_no_checkpoint_refers_to_are_cleared(tmp_path):
    out = tmp_path / "run"
    config = {**CONFIG, "method": {"name": "scaffold"}}
    fedprox.train(config, out=out)
    (devices_folder(out) / "99999999.safetensors").write_bytes(b"left over")
    fedprox.train({**config, "rounds": 8}, out=out, resume=True)
    kept = {path.name for path in devices_folder(out).iterdir()}
    assert "99999999.safetensors" not in kept
    assert kept


def test_a_full_disk_is_one_sentence_and_the_last_checkpoint_stays(tmp_path, monkeypatch):
    out = tmp_path / "run"
    config = {**CONFIG, "method": {"name": "scaffold"}, "checkpoint": {"every": 1}}
    written = write_segment

    def full_after_two(folder, file, *rest):
        if len([*folder.iterdir()]) >= 2:
            raise OSError(28, "No space left on device")
        return written(folder, file, *rest)

    monkeypatch.setattr("fedprox.runs.device_store.write_segment", full_after_two)
    with pytest.raises(RunFolderError, match="cannot be written: No space left on device"):
        fedprox.train(config, out=out)
    monkeypatch.undo()
    resumed = fedprox.train(config, out=out, resume=True)
    whole = fedprox.train(config)
    np.testing.assert_array_equal(resumed.params["weight"], whole.params["weight"])
