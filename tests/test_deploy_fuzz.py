"""Whatever a node sends, the server goes on: a message is taken, or refused for a reason of bounded length.

FEDPROX_MESSAGES sets how many messages the slow test makes; `make attack` has it make 10,000.
"""

import os
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fake_federation import FakeGrid
from fedprox.core.trees import flatten_names
from fedprox.deploy.measuring import ReportMeasurer
from fedprox.deploy.message_exchange import NodeAnswer
from fedprox.deploy.message_records import attempt
from fedprox.deploy.messages import Evaluation, Gradient, Introduction, WorkReport
from fedprox.deploy.remote_gradients import RemoteGradients
from fedprox.deploy.reply_checks import Expected
from fedprox.deploy.round_replies import Collected
from test_deploy_parts import POPULATION, build_config, header, run

MESSAGES = int(os.environ.get("FEDPROX_MESSAGES", "1000"))
MODEL = {"weight": np.ones((2, 2), np.float32), "bias": np.ones(2, np.float32)}
GOOD = [
    WorkReport(MODEL, 3, 1.0, 0.5, False, 2.0, 0.5),
    Evaluation(5, 0.5, 0.5, 2, 0.5, 0.5, MODEL),
    Introduction(1, 5, 2),
    Gradient(MODEL),
]
HEADERS = st.sampled_from(
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (True,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 9223372036854775808)}",
        "{'descr': '|O', 'fortran_order': False, 'shape': (2,)}",
        "{'descr': ('<f4', (2,)), 'fortran_order': 7, 'shape': (2,)}",
        "[" * 200,
    ]
)
BYTES = st.binary(max_size=200) | HEADERS.map(lambda text: header(text) + bytes(8))
VALUES = (
    st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.booleans()
    | st.text(max_size=30)
    | st.binary(max_size=30)
    | st.just("x" * 5_000_000)
    | st.lists(st.integers(-9, 9), max_size=3)
)
NAMES = st.sampled_from(["weight", "bias", "x" * 10_000, ""]) | st.text(max_size=5)


@st.composite
def arrays(draw):
    good = Array(draw(st.sampled_from([MODEL["weight"], MODEL["bias"], np.zeros(3)])))
    if draw(st.booleans()):
        data = bytearray(good.data)
        for _ in range(draw(st.integers(1, 3))):
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
        return Array(good.dtype, good.shape, good.stype, bytes(data))
    return Array(draw(st.sampled_from(["float32", "O", ""])), (2,), draw(st.text(max_size=5)), draw(BYTES))


@st.composite
def messages(draw):
    """A good message, changed in some places; or records of anything."""
    records = draw(st.sampled_from(GOOD)).to_records()
    for _ in range(draw(st.integers(0, 4))):
        change = draw(st.integers(0, 5))
        if change == 0:
            key = draw(st.sampled_from(["steps", "seconds", "loss", "device", "train_samples", "train_loss", "gamma"]))
            records["values"][key] = draw(VALUES)
        elif change == 1 and records.config_records.get("values"):
            records["values"].pop(draw(st.sampled_from(sorted(records["values"]))))
        elif change == 2:
            records["arrays"] = ArrayRecord({draw(NAMES): draw(arrays()) for _ in range(draw(st.integers(0, 3)))})
        elif change == 3 and "arrays" in records:
            records["arrays"][draw(st.sampled_from(["weight", "bias"]))] = draw(arrays())
        elif change == 4:
            records["values"] = ConfigRecord({draw(st.text(max_size=9)): draw(VALUES)})
        else:
            records[draw(st.sampled_from(["arrays", "values", "more"]))] = MetricRecord({"a": 1.0})
            break
    return records


def take_everywhere(records):
    """Have every place that takes messages of nodes take one; return the problems."""
    collected = Collected()
    work = collected.sort({1: NodeAnswer(records, None, 1.0)}, {1: Expected(5, max_norm=10.0)}, MODEL)
    assert (1 in work) != (1 in collected.problems)
    gradients = RemoteGradients(SimpleNamespace(exchanged=lambda tree: tree), MODEL)  # all of it is shared
    measurer = ReportMeasurer(
        build_config(), SimpleNamespace(samples=lambda device: Introduction(1, 5, 2), devices=range(2)), None, None
    )
    introduced, problem = attempt(lambda: Introduction.from_records(records))
    assert (introduced is None) == (problem is not None)
    return [*collected.problems.values(), gradients.take(1, records), measurer._checked(1, records, MODEL)[1], problem]


def check(records):
    for problem in take_everywhere(records):
        assert problem is None or 0 < len(problem) <= 210  # "refused: " and 200 characters


SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


@given(messages())
@settings(max_examples=200, deadline=None, suppress_health_check=SLOW)
def test_any_message_is_taken_or_refused(records):
    check(records)


@pytest.mark.slow
@given(messages())
@settings(max_examples=MESSAGES, deadline=None, suppress_health_check=SLOW)
def test_many_messages_are_taken_or_refused(records):
    check(records)


def test_good_messages_are_taken():
    work, report, introduction, gradient = (one.to_records() for one in GOOD)  # type: ignore[attr-defined]
    assert len(take_everywhere(work)) == 3  # without a problem of the work
    assert take_everywhere(report)[2] is None
    assert take_everywhere(introduction)[3] is None
    assert take_everywhere(gradient)[1] is None


def test_a_text_of_five_megabytes_leaves_a_short_record(tmp_path, monkeypatch):
    def shouts(device, asked, answer):
        if device != 1 or not hasattr(asked, "budget"):
            return answer
        records = answer.to_records()
        records["values"]["steps"] = "x" * 5_000_000
        return records

    config = build_config(rounds=1, devices={"per_round": 4})
    [row] = run(config, FakeGrid(config, POPULATION, shouts), tmp_path / "run", monkeypatch).devices
    problem = row["problem"][row["device"].index(1)]
    assert problem.startswith("refused: `steps` must be an integer >= 0; got 'xxx")
    assert len(problem) <= 210
    assert (tmp_path / "run" / "devices.jsonl").stat().st_size < 10_000


def test_one_reply_of_any_bytes_does_not_end_the_federation(tmp_path, monkeypatch):
    bad = header("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 9223372036854775808)}")

    def garbage(device, asked, answer):
        if device != 1:
            return answer
        records = RecordDict(answer.to_records())
        if records.array_records:
            records["arrays"] = ArrayRecord(
                {name: Array("float32", (3,), "numpy.ndarray", bad) for name in ("weight", "bias")}
            )
        return records

    config = build_config(rounds=2, devices={"per_round": 4})
    result = run(config, FakeGrid(config, POPULATION, garbage), tmp_path / "run", monkeypatch)
    assert result.summary["ended"] == "finished"
    assert result.summary["refused_replies"] == 2
    assert set(flatten_names(result.params)) == {"weight", "bias"}
