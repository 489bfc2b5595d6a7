"""Groups of small devices: the same numbers as device by device, bit for bit."""

from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import pytest

import fedprox
from fedprox.config import Config
from fedprox.core.compilation import compiled
from fedprox.core.compiled_philox import halves, upper_halves
from fedprox.core.lines import scale_lines, stack_lines, subtree_sums, take_lines
from fedprox.core.randomness import Purpose, words, words_of_devices
from fedprox.core.trees import TreeSum, scale, squared_norm
from fedprox.engines import Blueprint, Broadcast, Task, TaskList, small_devices
from fedprox.engines.device_side import DeviceSide
from fedprox.engines.groups import Group, find_groups
from fedprox.engines.ray.actor import DeviceActor
from fedprox.engines.small_devices import GroupReply, GroupSums, SmallDevices
from fedprox.methods.merging import ReplySums, RoundSum
from fedprox.participation import compiled_orders
from fedprox.participation.budget import minibatches
from fedprox.participation.compiled_orders import draw_orders, empty_orders
from fedprox.population import Population
from fedprox.solvers.device_groups import group_places, order_key


@pytest.fixture(scope="module")
def population():
    """Forty devices, of which one is too large for a group of ten epochs."""
    random = np.random.default_rng(3)
    sizes = random.integers(1, 30, 40)
    sizes[11] = 400
    owner = np.repeat(np.arange(40), sizes)
    x = random.normal(size=(len(owner), 6)).astype(np.float32)
    return Population.from_arrays(x, random.integers(0, 3, len(owner)), owner, test=np.arange(len(owner)) == 0)


@pytest.fixture
def groups(monkeypatch):
    """How many devices each group had; few are enough for one, as there are few in these tests."""
    monkeypatch.setattr("fedprox.engines.groups.FEWEST", 4)
    counts, solve, add_up = [], SmallDevices.solve, GroupSums.call

    def counted(self, tasks, *rest):
        counts.append(len(tasks))
        return solve(self, tasks, *rest)

    def counted_in_sums(self, begin, count):
        counts.append(int((self.data.places[begin : begin + count, 2] > 0).sum()))
        return add_up(self, begin, count)

    monkeypatch.setattr(SmallDevices, "solve", counted)
    monkeypatch.setattr(GroupSums, "call", counted_in_sums)
    return counts


def train(population, settings, rounds=2, **objects):
    base: dict[str, Any] = {
        "rounds": rounds,
        "method": {"name": "fedprox", "mu": 0.5},
        "solver": {"epochs": 10, "batch_size": 4, "learning_rate": 0.1},
        "devices": {"per_round": 30, "stragglers": 0.4},
        "engine": {"workers": 1},
    }
    for section, values in settings.items():
        base[section] = {**base.get(section, {}), **values}
    if base["method"]["name"] != "fedprox":
        base["method"].pop("mu")
    return fedprox.train(base, population=population, **objects)


def same(first, second):
    assert jax.tree.all(jax.tree.map(np.array_equal, first.params, second.params))
    for one, other in zip(first.devices, second.devices, strict=True):
        assert {**one, "solve_seconds": 0} == {**other, "solve_seconds": 0}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"devices": {"per_round": 10}}, set()),
        ({"devices": {"per_round": 16}}, {"groups"}),
        ({"devices": {"per_round": 10}, "measure": {"gamma": True}}, {"gamma"}),
        (
            {"devices": {"per_round": 10, "stragglers": 0.0}, "systems": {"model": "clock", "server": "buffered"}},
            {"groups"},
        ),
        (
            {
                "devices": {"per_round": 13, "stragglers": 0.0},
                "systems": {"model": "clock", "server": "over_selection"},
            },
            {"groups"},
        ),
    ],
)
def test_what_no_round_uses_is_not_compiled(population, monkeypatch, settings, expected):
    """13 times 1.3 devices are enough for a group."""
    found, program, gamma = set(), SmallDevices._program, DeviceSide.inexactness
    monkeypatch.setattr(SmallDevices, "_program", lambda *given: (found.add("groups"), program(*given))[1])
    monkeypatch.setattr(DeviceSide, "inexactness", lambda *given: (found.add("gamma"), gamma(*given))[1])
    train(population, {"solver": {"epochs": 1}, **settings}, rounds=1)
    assert found == expected


SETTINGS: dict[str, Any] = {
    "fedavg": {"method": {"name": "fedavg"}},
    "fedprox": {},
    "scaffold": {"method": {"name": "scaffold"}},
    "feddyn": {"method": {"name": "feddyn"}},
    "fednova": {"method": {"name": "fednova"}},
    "fedadam": {"method": {"name": "fedadam"}},
    "momentum": {"solver": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}},
    "adam": {"solver": {"name": "adam"}},
    "optax": {"solver": {"name": "optax", "options": {"name": "rmsprop"}}},
    "schedule": {"solver": {"schedule": "cosine"}},
    "one epoch": {"solver": {"epochs": 1}},
    "proportional": {"devices": {"sampling": "proportional", "failure": 0.2}},
    "median": {"merge": {"rule": "median"}},
    "drift": {"method": {"mu": "drift"}},
    "regression": {"model": {"name": "linear_regression"}},
}


@pytest.mark.parametrize("name", ["fedprox", "scaffold"])
def test_lanes_bound_how_many_devices_one_call_solves(population, groups, name):
    def found(lanes):
        groups.clear()
        settings = {**SETTINGS[name], "devices": {"per_round": 40}, "engine": {"workers": 1, "lanes": lanes}}
        return train(population, settings), list(groups)

    (free, all_groups), (bounded, small_groups), (alone, none) = found(0), found(23), found(1)
    assert max(all_groups) > 16 >= max(small_groups)  # a group is a subtree, so 23 lanes are 16
    assert none == []
    same(free, bounded)
    same(free, alone)


@pytest.mark.parametrize("name", SETTINGS)
def test_groups_give_the_bits_of_devices_one_by_one(population, groups, monkeypatch, name):
    together, two = (train(population, {**SETTINGS[name], "engine": {"workers": count}}) for count in (1, 2))
    assert max(groups) > 10
    del groups[:]
    monkeypatch.setattr(small_devices, "_is_usable", lambda device: False)
    alone = train(population, SETTINGS[name])
    assert not groups
    same(together, alone)
    same(together, two)


@pytest.mark.parametrize(
    ("name", "server"),
    [("fedprox", "asynchronous"), ("fednova", "buffered"), ("schedule", "buffered"), ("drift", "buffered")],
)
def test_devices_of_several_versions_in_one_call_have_the_bits_of_each_alone(population, monkeypatch, name, server):
    systems = {"model": "clock", "server": server, "concurrency": 8, **({"buffer": 3} if server == "buffered" else {})}
    more = {"systems": systems, "devices": {"stragglers": 0.0}}
    more["solver"] = {**SETTINGS[name].get("solver", {}), "epochs": 2}
    versions, solve = [], SmallDevices.solve_versions

    def counted(self, tasks, given, broadcasts):
        versions.append(len(broadcasts))
        return solve(self, tasks, given, broadcasts)

    monkeypatch.setattr(SmallDevices, "solve_versions", counted)
    together = train(population, {**SETTINGS[name], **more, "engine": {"workers": 2}}, rounds=12)
    assert max(versions) > 1
    monkeypatch.setattr(small_devices, "_is_usable", lambda device: False)
    same(together, train(population, {**SETTINGS[name], **more}, rounds=12))


def test_a_device_with_many_steps_is_solved_alone(population, groups):
    result = train(population, {"devices": {"per_round": 40, "stragglers": 0.0}})
    assert sum(groups) == 2 * 39 + 1  # one more to compile
    assert all(row["steps"] == row["budget"] for row in result.devices)


@dataclass(frozen=True)
class Shrunk(fedprox.methods.FedProx):  # type: ignore[name-defined]
    """Replies that depend on the whole of a device's model."""

    name: str = field(default="shrunk", init=False)

    def reply(self, solution):
        given = super().reply(solution)
        return given._replace(averaged=scale(given.averaged, 1 / (1 + squared_norm(given.averaged))))


@dataclass(frozen=True)
class TwoSolves(fedprox.methods.FedProx):  # type: ignore[name-defined]
    """A method with a `work` of its own."""

    name: str = field(default="two", init=False)

    def work(self, device):
        return self.reply(device.solve(start=device.solve().params))


@pytest.mark.parametrize("method", [Shrunk(), TwoSolves()])
def test_methods_that_are_not_elementwise_are_asked_device_by_device(population, groups, method):
    train(population, {}, method=method)
    assert not groups


@pytest.mark.parametrize(
    "settings",
    [
        {"method": {"name": "feddane"}},
        {"solver": {"gamma": 0.5}},
        {"solver": {"batch_size": 0}},
        {"solver": {"name": "lbfgs"}},
        {"model": {"name": "mlp"}},
        {"personal": {"frozen": ["bias"]}},
    ],
)
def test_what_does_not_fit_a_group_is_solved_alone(population, settings):
    many = {"devices": {"per_round": 30}}
    assert SmallDevices(Blueprint(many).build(population)).usable
    assert not SmallDevices(Blueprint(many | settings).build(population)).usable


def test_every_device_may_have_its_own_solver(population, groups):
    train(population, {}, solver=lambda device: fedprox.solvers.sgd(momentum=0.5 if device % 2 else 0.0))
    assert not groups


def test_an_actor_solves_its_chunk_in_groups(population, groups):
    blueprint = Blueprint(Config.of({"solver": {"batch_size": 4}, "devices": {"per_round": 16}}).to_dict())
    params = {"bias": np.zeros(3, np.float32), "weight": np.zeros((3, 6), np.float32)}
    tasks = [Task(device, 5, 1 / 8, 0.1) if device != 2 else None for device in range(8)]
    actor = DeviceActor()
    actor.build(blueprint, population, params)
    del groups[:]
    broadcast = Broadcast(1, params, (), 0.5)
    chunk = actor.solve(broadcast, tasks, False, False, False)
    assert groups == [7]
    sums, side = ReplySums(8), blueprint.build(population)
    for position, task in enumerate(tasks):
        if task is not None:
            sums.add(position, *task.weighted(side.solve(task, broadcast, side.shared(broadcast)).reply))
    assert jax.tree.all(jax.tree.map(np.array_equal, chunk.averaged, sums.result()[0]))
    assert chunk.steps == [5, 5, 0, 5, 5, 5, 5, 5]


def test_words_of_many_devices_are_those_of_each():
    random = np.random.default_rng(0)
    counts, devices = random.integers(0, 40, 300), random.integers(0, 2**40, 300)
    seed = 2**64 - 3
    drawn, begins = words_of_devices(counts, seed, Purpose.ORDER, 2**33 + 5, devices)
    for begin, count, device in zip(begins, counts.tolist(), devices.tolist(), strict=True):
        expected = words(count, seed, Purpose.ORDER, 2**33 + 5, device)
        np.testing.assert_array_equal(drawn[begin : begin + count], expected)


def test_words_within_a_program_are_those_of_the_generator():
    seed, round, device = 2**64 - 3, 2**33 + 5, 2**40 + 7
    key, counter = order_key(seed), halves(np.array([round, device], np.uint64))
    found = jax.jit(upper_halves, static_argnums=3)(key, counter, np.int32(3), 4)
    expected = words(24, seed, Purpose.ORDER, round, device)[8:] >> np.uint64(32)
    np.testing.assert_array_equal(found, expected.astype(np.uint32))


def test_orders_within_a_program_are_those_of_each_device():
    random = np.random.default_rng(1)
    samples, steps = random.integers(1, 50, 60), random.integers(1, 30, 60)
    samples[:3], steps[:3] = (512, 16, 17), (80, 3, 6)
    devices, batch_size = random.permutation(1000)[:60], 7
    places = group_places(np.zeros(60), samples, steps, 0, 4, devices, 60)

    @compiled
    def draw(orders, place):
        counter = jax.numpy.stack([place[4], 0, place[5], 0]).astype(np.uint32)
        return draw_orders(orders, order_key(9), counter, place[1], place[2], batch_size)

    orders = empty_orders(148, batch_size)
    for k, device in enumerate(devices.tolist()):
        orders = draw(orders, places[k])  # into the memory of the device before
        pieces = minibatches(int(samples[k]), batch_size, int(steps[k]), seed=9, round=4, device=device, piece=256)
        (piece,) = pieces
        np.testing.assert_array_equal(orders.rows.reshape(-1, batch_size)[: steps[k]], piece.rows[: steps[k]])


def test_equal_words_keep_the_order_of_their_samples(monkeypatch):
    drawn = np.array([7, 3, 7, 3, 2**32 - 1, 0, 2**32 - 1, 3], np.uint32)
    monkeypatch.setattr(compiled_orders, "upper_halves", lambda *_: np.resize(drawn, 32))
    orders = draw_orders(empty_orders(3, 3), order_key(0), order_key(0), np.int32(8), np.int32(3), 3)
    assert orders.rows.tolist() == [5, 1, 3, 7, 0, 2, 4, 6, 0]


@pytest.mark.parametrize("count", [1, 2, 5, 16, 23])
@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
def test_subtrees_add_up_like_the_tree_of_all(count, share):
    random = np.random.default_rng(count)
    lines = {"a": random.normal(size=(count, 3)).astype(np.float32), "b": random.normal(size=count)}
    given = random.uniform(size=count) >= share
    total, parts = TreeSum(count), RoundSum(count)
    for position in range(count):
        leaf = jax.tree.map(lambda each, position=position: each[position], lines)
        total.add(position, leaf)
        if not given[position]:
            parts.add(position, leaf)
    parts.add_subtrees(0, subtree_sums(lines, given), given)
    assert jax.tree.all(jax.tree.map(np.array_equal, parts.result(), total.result()))


@pytest.mark.parametrize("count", [1, 5, 8])
def test_a_group_adds_up_like_the_tree(count):
    random = np.random.default_rng(count)
    lines = {"a": random.normal(size=(count, 3)).astype(np.float32), "b": random.normal(size=count)}
    lines["a"][:, 0] = -0.0  # the sign of a zero stays, too
    tasks = TaskList.of([Task(device, 1, 0.3, 0.1) if device != 2 else None for device in range(count)])
    group = Group(0, np.flatnonzero(tasks.asked), tasks, np.ones(count, bool))
    given = GroupReply(take_lines(lines, group.positions), (), [], [1] * len(group.positions), [])
    total, parts = RoundSum(count), RoundSum(count)
    for position in group.positions.tolist():
        total.add(position, scale(take_lines(lines, position), 0.3))
    parts.add_subtrees(0, group.sums(given, most=16)[0], group.adds)
    bits = [jax.tree.map(lambda leaf: np.asarray(leaf).tobytes(), each.result()) for each in (parts, total)]
    assert bits[0] == bits[1]


def test_lines_are_scaled_like_trees():
    random = np.random.default_rng(0)
    trees = [{"a": random.normal(size=(2, 3)).astype(np.float32), "b": random.normal()} for _ in range(5)]
    factors = random.uniform(size=5)
    lines = scale_lines(stack_lines(trees), factors)
    for index, (tree, factor) in enumerate(zip(trees, factors.tolist(), strict=True)):
        expected = scale({"a": tree["a"], "b": np.float64(tree["b"])}, factor)
        assert jax.tree.all(jax.tree.map(np.array_equal, expected, take_lines(lines, index)))


def test_groups_come_from_aligned_pieces(groups):
    tasks = TaskList.of([Task(device, 1, 0.1, 0.1) if device % 5 else None for device in range(11)])
    small = tasks.asked & (tasks.devices != 6)
    first, *rest = find_groups(tasks, small, level=3)
    assert not rest  # two devices are not worth a group
    assert first.positions.tolist() == [1, 2, 3, 4, 7]
    assert first.adds.tolist() == [True] * 6 + [False, True]


def test_a_large_device_with_a_small_budget_is_not_small(population):
    side = Blueprint(Config.of({"solver": {"batch_size": 1}}).to_dict()).build(population)
    small = SmallDevices(side)
    tasks = TaskList.of([Task(0, 1, 0.1, 0.1), Task(11, 1, 0.1, 0.1)])
    assert small.takes(tasks, small.rows(tasks)).tolist() == [True, False]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_how_many_devices_one_call_adds_up_changes_no_bit(workers, groups, monkeypatch):
    random = np.random.default_rng(5)
    owner = np.repeat(np.arange(700), random.integers(1, 4, 700))
    x = random.normal(size=(len(owner), 6)).astype(np.float32)
    many = Population.from_arrays(x, random.integers(0, 3, len(owner)), owner, test=np.arange(len(owner)) == 0)
    settings = {"devices": {"per_round": 600}, "solver": {"epochs": 1}, "engine": {"workers": workers}}
    found = train(many, settings)
    assert (max(groups) > 256) == (workers == 1)  # 512 and 88 devices are not shared out evenly
    monkeypatch.setattr(small_devices, "_MOST_ADDED", 64)
    groups.clear()
    same(train(many, settings), found)
    assert max(groups) <= 64
