"""The devices' side of a round for many small devices at once, which were given one model or several versions of it.

One call of a compiled program draws the mini-batches of all and takes their steps. Where devices send their model and
nothing else the program adds them up, too; otherwise the method's hooks, which must be elementwise, are called once.
Every number is the one that `DeviceSide.solve` gives device by device. What does not fit this form is solved there: a
device with many steps or samples, a method with its own `work`, a solver that is not a plain loop over mini-batches, a
target for gamma, privacy.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from threading import Lock
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.core.lines import pad_lines, split_lines, stack_lines, take_lines, view_lines
from fedprox.core.trees import Tree, quiet, squared_distance, to_numpy
from fedprox.engines.device_side import Broadcast, DeviceSide
from fedprox.engines.task_list import TaskList
from fedprox.methods import Received, Reply
from fedprox.methods.custom_checks import checked_values
from fedprox.methods.device_view import Solution
from fedprox.methods.hook_marks import is_elementwise, is_standard
from fedprox.methods.solver_choice import SharedSolver
from fedprox.models import Model
from fedprox.models.parameter_shapes import parameter_shapes
from fedprox.participation.budget import padded_batch, steps_begun
from fedprox.solvers.device_groups import (
    GroupData,
    group_places,
    group_program,
    group_sum_program,
    order_key,
    solves_groups,
)
from fedprox.solvers.subproblem import Subproblem

__all__ = ["FEWEST", "GroupReply", "GroupSums", "Rows", "SmallDevices"]

FEWEST = 16  # the smallest group that pays: fewer devices are faster one by one
_MOST_STEPS = 256  # of a device: after that its steps take longer than a call
_MOST_SAMPLES = 512  # of a device: to rank more would take long
_MOST_LINES, _NUMBERS = 256, 1 << 20  # devices and parameters that come out of one call
_MOST_ADDED = 1024  # devices in one call whose sum alone comes out
_AT_ONCE = 1 << 17  # samples in the mini-batches of one call, during which no signal is handled


class GroupReply(NamedTuple):
    """What comes back from some devices, in their order; trees have a first axis over the devices."""

    averaged: Tree
    summed: Tree
    states: list[Tree]  # what each device remembers; empty where that is nothing
    steps: list[int]
    drift2: list[float]  # ||w_k - w^t||^2; empty where it was not asked for

    def received(self, tasks: TaskList) -> list[Received]:
        """Return the replies one by one, for methods and merge rules that see every one."""
        both = (view_lines(self.averaged, len(tasks)), view_lines(self.summed, len(tasks)))
        replies = map(Reply, *both)
        columns = (tasks.devices.tolist(), replies, tasks.weights.tolist(), tasks.masses.tolist(), self.steps)
        return list(map(Received, *columns))


class Rows(NamedTuple):
    """The samples of some devices."""

    begins: NDArray[np.int64]
    samples: NDArray[np.int64]  # their number


class GroupSums(NamedTuple):
    """Adds up what small devices of a round reply, for pieces of its list."""

    program: Callable[..., Any]
    problem: Subproblem
    rates: NDArray[np.float32]
    data: GroupData  # with places for all devices of the round
    weights: NDArray[np.float32]
    lines: int  # of one call

    def call(self, begin: int, count: int) -> Callable[[], Tree]:
        """Return the call that gives the sum over `count` positions from `begin` on; those not asked add zero."""
        own = slice(begin, begin + self.lines)
        data = self.data._replace(places=self.data.places[own], devices=np.int32(count))
        return partial(self.program, self.problem, self.rates, data, self.weights[own])


class SmallDevices:
    """Solves groups of small devices, where the run allows it (`usable`).

    Attributes:
      usable: whether the devices of the run can be solved in groups.
      lines: the most devices in one call of the compiled program, a power of two.
      turn: held by a thread while it works on a group in Python, while other threads run programs. Every array
        operation releases and reacquires Python's lock; two threads that do so at once take longer than one.
    """

    def __init__(self, device: DeviceSide) -> None:
        self._device = device
        self._batch_size = _batch_size(device)
        self.turn = Lock()
        self.usable = _is_usable(device)
        self.lines = _most_lines(device.model, device.lanes) if self.usable else 0
        self._key = jax.device_put(order_key(device.seed))  # once: `to_backend` would compile a program for it

    @property
    def _solver(self) -> Any:
        """The solver that all devices share."""
        return self._device.solver_for(0)

    def rows(self, tasks: TaskList) -> Rows:
        """Return where the samples of the devices are."""
        offsets = self._device.samples.offsets
        begins = offsets[tasks.devices]
        return Rows(begins, offsets[tasks.devices + 1] - begins)

    def takes(self, tasks: TaskList, rows: Rows) -> NDArray[np.bool_]:
        """Return which devices are small, of those that are asked."""
        most = int(rows.samples.max(initial=0))
        if most <= _MOST_SAMPLES and most + int(tasks.budgets.max(initial=0)) <= _MOST_STEPS:
            return tasks.asked  # no epoch has more steps than samples
        begun = steps_begun(rows.samples, self._batch_size, tasks.budgets)
        small: NDArray[np.bool_] = (begun <= _MOST_STEPS) & (rows.samples <= _MOST_SAMPLES)
        return tasks.asked & small

    def first_broadcast(self, params: Tree) -> Broadcast:
        """Return what devices are sent at the start of a run, to compile what a round needs."""
        method = self._device.method
        return Broadcast(1, params, method.send(method.start(params), None), 0.0)

    def adds_up(self, broadcast: Broadcast) -> bool:
        """Return whether the devices' replies can be added up in groups.

        Devices send their model, which is in single precision as the program's sums are, and remember nothing.
        """
        method, params = self._device.method, broadcast.params
        if not is_standard(method.reply) or broadcast.wants_drift or method.start_device(params) is not None:
            return False
        if method.linear(broadcast.sent, None, None) is not None:
            return False
        return all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(params))

    def most_added(self, tasks: TaskList) -> int:
        """Return up to how many devices one call may add up, a power of two."""
        most, longest = _at_most(_MOST_ADDED, self._device.lanes), int(tasks.budgets.max(initial=0)) * self._batch_size
        while most > self.lines and most * longest > _AT_ONCE:
            most //= 2
        return most

    def add_up(self, tasks: TaskList, rows: Rows, broadcast: Broadcast) -> GroupSums:
        """Return what adds up the replies of small devices, where they can be added up."""
        side, lines = self._device, _MOST_ADDED
        columns = (*rows, tasks.steps, 0, broadcast.round, tasks.devices)
        places = group_places(*columns, len(tasks) + lines)
        weights = np.zeros(len(places), np.float32)
        weights[: len(tasks)] = tasks.weights
        data = GroupData(side.loaded.x, side.loaded.y, self._key, places, np.int32(0))
        return GroupSums(self._program(group_sum_program), *self._common([broadcast]), data, weights, lines)

    def fits_one_call(self, steps: int) -> bool:
        """Return whether this number of steps takes no longer than one call may."""
        return steps * self._batch_size <= _AT_ONCE

    def _program(self, program_of: Callable[..., Callable[..., Any]]) -> Callable[..., Any]:
        return program_of(self._device.model, self._solver, self._batch_size, _MOST_STEPS)

    def can_mix(self, broadcasts: Sequence[Broadcast]) -> bool:
        """Return whether devices that were given different models can be solved together.

        They remember nothing, and the solver is SGD: jaxlib 0.10.2 aborts the process on some optax transforms that
          start from a model chosen in the loop.
        """
        method = self._device.method
        if not self.usable or not self._solver.is_sgd or method.start_device(broadcasts[0].params) is not None:
            return False
        return all(method.linear(each.sent, None, None) is None for each in broadcasts)

    def solve(self, tasks: TaskList, broadcast: Broadcast) -> GroupReply:
        """Work on the subproblems of some devices of a round."""
        return self.solve_versions(tasks, np.zeros(len(tasks), np.int64), [broadcast])

    @quiet
    def solve_versions(
        self, tasks: TaskList, versions: NDArray[np.int64], broadcasts: Sequence[Broadcast]
    ) -> GroupReply:
        """Work on the subproblems of some devices; `versions` says which of the broadcasts each was sent."""
        method = self._device.method
        with self.turn:
            states = self._remembered(tasks, broadcasts[0].params)
            linear = method.linear(broadcasts[0].sent, states, None)
            calls = list(self._calls(tasks, versions, broadcasts, linear))
        program = self._program(group_program)
        solutions = [(program(*arguments), each) for arguments, each in calls]
        with self.turn:
            parts = [take_lines(to_numpy(lines), slice(0, each)) for lines, each in solutions]
            found = parts[0] if len(parts) == 1 else jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
            reply = self._reply(found, states, tasks.budgets, versions, broadcasts)
            drift2 = []
            if broadcasts[0].wants_drift:
                received = [method.shared(each.params) for each in broadcasts]
                drift2 = [
                    squared_distance(method.shared(take_lines(found, each)), received[version])
                    for each, version in enumerate(versions.tolist())
                ]
            remembered = [] if reply.state is None else split_lines(reply.state, len(tasks))
            return GroupReply(reply.averaged, reply.summed, remembered, tasks.budgets.tolist(), drift2)

    def _remembered(self, tasks: TaskList, params: Tree) -> Tree:
        """Return what the devices remember, as lines; None where that is nothing."""
        first = self._device.method.start_device(params)
        if first is None:
            return None
        known = (tasks.states.get(device) for device in tasks.devices.tolist())
        return stack_lines([first if each is None else each for each in known])

    def _calls(
        self, tasks: TaskList, versions: NDArray[np.int64], broadcasts: Sequence[Broadcast], linear: Tree
    ) -> Iterator[tuple[Any, int]]:
        """Yield the arguments of the program's calls, and how many devices each is for."""
        side, devices, steps = self._device, tasks.devices, tasks.budgets
        begins, samples = self.rows(tasks)
        rounds = np.array([each.round for each in broadcasts], np.int64)[versions]
        for part in self._parts(steps_begun(samples, self._batch_size, steps)):
            used, own_version = np.unique(versions[part], return_inverse=True)
            columns = (begins[part], samples[part], steps[part], own_version, rounds[part], devices[part])
            count = len(own_version)
            data = GroupData(
                side.loaded.x, side.loaded.y, self._key, group_places(*columns, self.lines), np.int32(count)
            )
            own = None if linear is None else pad_lines(take_lines(linear, part), self.lines)
            problem, rates = self._common([broadcasts[each] for each in used.tolist()])
            yield (problem._replace(linear=own), rates, data), count

    def _common(self, broadcasts: Sequence[Broadcast]) -> tuple[Subproblem, NDArray[np.float32]]:
        """Return the subproblems without a linear term and the learning rates, with a line for each broadcast.

        There is one line, or as many as there are devices in a call, so that two programs are compiled and no more.
        """
        if len(broadcasts) == 1:
            only = broadcasts[0]
            anchor = jax.tree.map(lambda leaf: leaf[None], only.params)
            rate = self._device.rate(only.round)
            return Subproblem(anchor, np.full(1, only.mu, np.float32)), np.full(1, rate, np.float32)
        lines = self.lines
        mus, rates = np.zeros(lines, np.float32), np.zeros(lines, np.float32)
        mus[: len(broadcasts)] = [each.mu for each in broadcasts]
        rates[: len(broadcasts)] = [self._device.rate(each.round) for each in broadcasts]
        anchors = pad_lines(stack_lines([each.params for each in broadcasts]), lines)
        return Subproblem(anchors, mus), rates

    def _parts(self, needed: NDArray[np.int64]) -> Iterator[slice]:
        """Divide devices that need given numbers of mini-batches into parts for one call each."""
        begin, rows, most = 0, 0, _AT_ONCE // self._batch_size
        for end, each in enumerate(needed.tolist()):
            if (rows + each > most and rows) or end - begin == self.lines:
                yield slice(begin, end)
                begin, rows = end, 0
            rows += each
        yield slice(begin, len(needed))

    def _reply(
        self,
        found: Tree,
        states: Tree,
        steps: NDArray[np.int64],
        versions: NDArray[np.int64],
        broadcasts: Sequence[Broadcast],
    ) -> Reply:
        """Return what the devices reply, as lines; those with the same model and number of steps are asked at once."""
        side = self._device

        def ask(params: Tree, state: Tree, first: int) -> Reply:
            broadcast = broadcasts[int(versions[first])]
            solution = Solution(
                anchor=broadcast.params,
                params=params,
                steps=int(steps[first]),
                learning_rate=side.rate(broadcast.round),
                mu=broadcast.mu,
                solver=self._solver,
                sent=broadcast.sent,
                state=state,
                received=broadcast.params,
            )
            given = checked_values(side.method, side.method.reply(solution))
            count = len(jax.tree.leaves(params)[0])
            return jax.tree.map(lambda leaf: leaf if np.ndim(leaf) else np.full(count, leaf), given)

        if is_standard(side.method.reply):
            return ask(found, states, 0)
        order = np.lexsort((steps, versions))
        changes = (np.diff(steps[order]) != 0) | (np.diff(versions[order]) != 0)
        bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), len(steps)]
        if len(bounds) == 2:
            return ask(found, states, 0)
        parts = [order[begin:end] for begin, end in itertools.pairwise(bounds)]
        replies = [ask(take_lines(found, part), take_lines(states, part), int(part[0])) for part in parts]
        back = np.argsort(order)
        return jax.tree.map(lambda *leaves: np.concatenate(leaves)[back], *replies)


def _most_lines(model: Model, lanes: int) -> int:
    shapes = parameter_shapes(model)
    size = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    return _at_most(max(FEWEST, min(_MOST_LINES, 1 << (_NUMBERS // max(size, 1)).bit_length() - 1)), lanes)


def _at_most(count: int, lanes: int) -> int:
    """Return a power of two, or the largest one within the given number of lanes, of which 0 is no bound."""
    return min(count, 1 << lanes.bit_length() - 1) if lanes else count


def _is_usable(device: DeviceSide) -> bool:
    """Return whether all that a device does fits the form of a group."""
    if not isinstance(device.solver_for, SharedSolver) or device.mechanism is not None or 0 < device.lanes < FEWEST:
        return False
    if device.gamma > 0 or device.method.needs_gradients:
        return False
    kind = type(device.method)
    posed: list[Callable[..., object]] = [kind.work, kind.anchor, kind.device_mu, kind.start_point]
    if not all(map(is_standard, posed)):
        return False
    if not (is_elementwise(kind.linear) and is_elementwise(kind.reply)):
        return False
    return solves_groups(device.model, device.solver_for.solver, _batch_size(device))


def _batch_size(device: DeviceSide) -> int:
    """Return to how many rows the mini-batches of every small device are padded."""
    return padded_batch(_MOST_SAMPLES, device.batch_size)
