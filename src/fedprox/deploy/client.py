"""A device of a real federation: it trains until its budget or its time is spent, and returns what it has.

Flower starts a new process for every message. Compiled programs are kept on disk, so that only the first message on a
machine compiles. That time counts, like everything between the arrival of a message and the last step;
only the measures of the work, a pass over the device's samples or two, come after it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import platformdirs
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedprox import methods
from fedprox.config import Config
from fedprox.core.compilation import prepare
from fedprox.core.errors import ConfigError
from fedprox.core.threads import Workers
from fedprox.core.trees import Tree, flatten_names, overlay_names, to_numpy, total
from fedprox.deploy.asked_work import AskedWork
from fedprox.deploy.device_data import DeviceData, checked_data
from fedprox.deploy.message_records import Named, WrongMessageError
from fedprox.deploy.messages import (
    Evaluation,
    Gradient,
    Instruction,
    Introduction,
    ModelQuery,
    PersonalVersion,
    WorkReport,
)
from fedprox.deploy.personal_files import PersonalFiles
from fedprox.deploy.settings import run_settings
from fedprox.engines import device_side
from fedprox.engines.deadline import Deadline
from fedprox.measures import Measurer
from fedprox.measures.metrics import Metrics, build_metrics
from fedprox.methods import DeviceView, Method, Posed
from fedprox.methods.parameter_roles import assign_roles
from fedprox.methods.solver_choice import choose_solver
from fedprox.models import Model
from fedprox.models.initial_model import initial_params
from fedprox.models.model_check import check_fits
from fedprox.population.loaded_samples import LoadedSamples, to_backend
from fedprox.privacy import build_mechanism, system_normals
from fedprox.solvers import Solver
from fedprox.solvers.subproblem import Subproblem

__all__ = ["Device", "client_app"]


def client_app(
    settings: str | Path,
    model: Callable[[Config], Model],
    data: Callable[[Config, int], DeviceData],
    solver: Callable[[Config], Solver] | None = None,
    *,
    method: Callable[[Config], Method] | None = None,
) -> ClientApp:
    """Return the Flower app of a device.

    Args:
      settings: the app's TOML file, the same as the server's.
      model: the model for a config.
      data: the samples of this device, given its number: the `partition-id` of the node's config.
      solver, method: what takes the place of what the config names, for a config, as on the server.
    """
    app = ClientApp()

    def device(context: Context) -> Device:
        prepare()
        config = run_settings(settings, context.run_config)
        own = checked_data(data(config, _read_number(context)))
        return Device(
            config,
            model(config),
            own,
            solver(config) if solver is not None else None,
            method(config) if method is not None else None,
        )

    @app.query()
    def introduce(message: Message, context: Context) -> Message:
        config = run_settings(settings, context.run_config)
        return _reply(introduction(checked_data(data(config, _read_number(context)))), message)

    @app.query("gradient")
    def gradient(message: Message, context: Context) -> Message:
        own = device(context)
        return _reply(own.gradient(ModelQuery.from_records(message.content, own.like)), message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrived = time.monotonic()
        own = device(context)
        return _reply(own.work(Instruction.from_records(message.content, own.like), arrived), message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        own = device(context)
        return _reply(own.evaluate(ModelQuery.from_records(message.content, own.like)), message)

    return app


def introduction(data: DeviceData) -> Introduction:
    """Return how a device identifies itself."""
    return Introduction(data.device, len(data.population.train), len(data.population.test))


class Device:
    """A device with its data: what it does with the messages of the server."""

    def __init__(
        self,
        config: Config,
        model: Model,
        data: DeviceData,
        solver: Solver | None = None,
        method: Method | None = None,
        folder: Path | None = None,
    ) -> None:
        check_fits(model, data.population.shape, data.population.classes)
        self._config, self._model, self._data = config, model, data
        self._folder = folder or platformdirs.user_data_path("fedprox") / "personal"
        method = method or methods.build(config.method, config.seed)
        self._roles = assign_roles(config, model, method)
        self._like = initial_params(config, model)
        self.like = flatten_names(self._roles.exchanged(self._like))
        self._loaded = LoadedSamples.of(data.population.train, model)
        self._mechanism = build_mechanism(config)
        self._metrics = Metrics(build_metrics(config.measure), model, data.population)
        solver_for = choose_solver(config, solver, self._roles.of_method(method))
        trained = self._roles.of_model(model)
        self._side = device_side(config, data.samples, self._loaded, trained, method, solver_for)

    def work(self, asked: Instruction, arrived: float | None = None) -> WorkReport:
        """Work on the subproblem until the budget or the time is spent."""
        if asked.device != self._data.device:  # the node was started again under another number
            raise WrongMessageError(f"the message is for device {asked.device}; this is device {self._data.device}")
        started = time.monotonic() if arrived is None else arrived
        left = asked.seconds - (time.monotonic() - started) if asked.seconds else math.inf
        deadline = Deadline(left)
        received = overlay_names(self._like, asked.params)
        state, is_lost = self._remembered(asked.personal)
        shared, done = Subproblem(to_backend(received), None), []

        def pose(posed: Posed, budget: int) -> tuple[Tree, int]:
            done.append(self._side.work(asked.device, asked.round, shared, posed, budget, deadline))
            return to_numpy(done[0].found), done[0].steps

        method = self._roles.of_method(AskedWork(posed=self._posed(asked)))
        solver = self._side.solver_for(asked.device)
        view = DeviceView(received, (), state, None, 0.0, asked.budget, self._side.rate(asked.round), solver, pose)
        reply = method.work(view)
        deadline.stop()
        seconds = time.monotonic() - started
        if asked.personal is not None and asked.personal.written:
            oldest = asked.round - 2 * self._config.checkpoint.every  # of the checkpoints, the last two are kept
            self._files(asked.personal).write(
                asked.personal.written, asked.personal.used, reply.state["personal"], oldest=oldest
            )
        local, found, steps = done[0]
        samples_in_step = local.count / local.steps_per_epoch
        pace = deadline.steps_per_second
        return WorkReport(
            params=flatten_names(self._sent(*map(self._roles.exchanged, (received, to_numpy(found))))),
            steps=steps,
            seconds=seconds,
            loss=self._measurer().measure(method.device_model(received, state)).train_loss,
            stopped_by_time=deadline.passed,
            speed=None if pace is None else pace * samples_in_step,
            gamma=self._side.inexactness(local, found) if self._config.measure.gamma else None,
            lost_personal=is_lost,
        )

    def _posed(self, asked: Instruction) -> Posed:
        """Return the subproblem of a message, on the shared parameters."""
        shared = self._roles.of_method(AskedWork()).shared

        def tree(named: Named | None) -> Tree:
            return None if named is None else shared(overlay_names(self._like, named))

        return Posed(tree(asked.anchor), asked.mu, tree(asked.linear), tree(asked.start), asked.gamma)

    def _remembered(self, version: PersonalVersion | None) -> tuple[Tree, bool]:
        """Return what the device remembers, and whether it should remember more: its files may be lost."""
        at_first = self._roles.of_method(AskedWork()).start_device(self._like)
        if version is None or not version.used:
            return at_first, False
        kept = self._files(version).read(version.used, like=at_first["personal"])
        return (at_first, True) if kept is None else ({**at_first, "personal": kept}, False)

    def _files(self, version: PersonalVersion) -> PersonalFiles:
        return PersonalFiles(self._folder / version.run / str(self._data.device))

    def _own(self, asked: ModelQuery) -> Tree:
        """Return the device's own model: what it was sent, with its personal and frozen parameters."""
        state, _ = self._remembered(asked.personal)
        return self._roles.of_method(AskedWork()).device_model(overlay_names(self._like, asked.params), state)

    def _sent(self, anchor: Tree, params: Tree) -> Tree:
        """Return the model that leaves the device: w_k, or with private noise of its own w^t plus a private update."""
        if self._mechanism is None or not self._mechanism.on_devices:
            return params
        return total(anchor, self._mechanism.update(anchor, params, system_normals))

    def gradient(self, asked: ModelQuery) -> Gradient:
        """Return grad F_k at a model."""
        return Gradient(self._gradient(self._own(asked)))

    def evaluate(self, asked: ModelQuery) -> Evaluation:
        """Measure a model on the device's samples."""
        params = self._own(asked)
        [row] = self._measurer().per_device(params)
        gradient = self._gradient(params) if self._config.measure.dissimilarity else None
        return Evaluation(
            row["train_samples"],
            row["train_loss"],
            row["train_accuracy"],
            row["test_samples"],
            row["test_loss"],
            row["test_accuracy"],
            gradient,
            {name: math.nan if value is None else value for name, value in self._metrics.measure(params).items()},
        )

    def _measurer(self) -> Measurer:
        return Measurer(self._data.population, self._loaded, self._model, Workers(1), gradients=False)

    def _gradient(self, params: Tree) -> Named:
        gradient = self._side.gradient(self._data.device, to_backend(params))
        return flatten_names(self._roles.exchanged(gradient))


def _reply(said: Any, to: Message) -> Message:
    records: RecordDict = said.to_records()
    return Message(records, reply_to=to)


def _read_number(context: Context) -> int:
    number = context.node_config.get("partition-id")
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ConfigError(f"the node's config must hold partition-id, an integer >= 0; got {number!r}")
    return number
