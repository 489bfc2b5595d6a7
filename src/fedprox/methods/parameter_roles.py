"""Which parameters of a model are shared, personal or frozen, and any method on the shared ones alone.

    shared      sent down, trained, sent up and merged: the tree that the method sees
    personal    trained on the device and kept there; never sent
    frozen      as they are at the start; neither trained nor sent
    statistics  collected in training (`Model.statistics`), sent and averaged with the round's weights, or personal

`[personal]` names the personal and the frozen ones by patterns over parameter names. A method is wrapped: where a
parameter is not shared, the trees that it sees have None. The proximal and the linear term act on shared parameters.
A device's personal parameters are part of what it remembers, so they are in checkpoints; they start as in w^0.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.config import Config
from fedprox.core.errors import ConfigError, nearest
from fedprox.core.name_patterns import matches, matches_any
from fedprox.core.trees import Tree, flatten_names, map_names, overlay_names, scale, total
from fedprox.methods.custom_checks import checked_posed, checked_reply, kept_devices, merged_model
from fedprox.methods.device_view import DeviceView, Mu, Posed, Reply
from fedprox.methods.method import Method, Received
from fedprox.models import Model
from fedprox.models.parameter_shapes import parameter_shapes
from fedprox.models.untrained import FrozenHost
from fedprox.participation.stragglers import Workload
from fedprox.solvers import Solver
from fedprox.solvers.solver import trains_by_itself

__all__ = ["ParameterRoles", "assign_roles"]


@dataclass(frozen=True)
class ParameterRoles:
    """The names of a model's parameters by role."""

    shared: frozenset[str] = frozenset()
    personal: frozenset[str] = frozenset()
    frozen: frozenset[str] = frozenset()
    averaged: frozenset[str] = frozenset()  # statistics that are not personal
    statistics: frozenset[str] = frozenset()  # all that are collected in training, averaged or personal
    has_training: bool = True  # whether the model has `training`, by which compiled solvers collect them

    @property
    def is_plain(self) -> bool:
        """Whether all parameters are shared."""
        return not (self.personal or self.frozen or self.averaged)

    def exchanged(self, tree: Tree) -> Tree:
        """Return the leaves of a tree that are sent: shared parameters and averaged statistics."""
        return tree if self.is_plain else _pick(tree, self.shared | self.averaged)

    def on_server(self) -> ParameterRoles:
        """Return the roles on the server of real devices: it never has personal parameters, and keeps those of w^0."""
        return replace(self, personal=frozenset(), frozen=self.frozen | self.personal)

    def of_model(self, model: Model) -> Model:
        """Return the model whose frozen parameters have no gradient."""
        return _frozen(model, self.frozen)

    def of_measures(self, model: Model) -> Model:
        """Return the model whose gradient is that of the shared parameters: the part in which devices can disagree."""
        return _frozen(model, self.frozen | self.personal)

    def apply(self, model: Model, method: Method) -> tuple[Model, Method, Model]:
        """Return the model and method of a run, and the model whose gradients are measured."""
        return self.of_model(model), self.of_method(method), self.of_measures(model)

    def of_method(self, method: Method) -> Method:
        """Return the method on the shared parameters."""
        if self.is_plain:
            return method
        declared = {each.name: getattr(method, each.name) for each in fields(Method)}
        declared["own_models"] = method.own_models or bool(self.personal)
        return _Divided(**declared, inner=method, roles=self)


def assign_roles(config: Config, model: Model, method: Method) -> ParameterRoles:
    """Return the roles that `[personal]` and the model's statistics give, or refuse them."""
    chosen = config.personal
    if not (chosen.parameters or chosen.frozen or model.statistics or model.frozen):
        return ParameterRoles()
    shapes = parameter_shapes(model)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in jax.tree.leaves_with_path(shapes)]
    personal = _matched("personal.parameters", chosen.parameters, names, model)
    fixed = frozenset(name for name in names if matches_any(name, model.frozen))
    personal, frozen = personal - fixed, _matched("personal.frozen", chosen.frozen, names, model) | fixed
    if both := sorted(personal & frozen):
        raise ConfigError(
            f"`personal.frozen` must not match parameters of `personal.parameters`; got {both[0]!r} in both"
        )
    statistics = frozenset(name for name in names if matches_any(name, model.statistics))
    shared = frozenset(names) - personal - frozen - statistics
    if not shared:
        raise ConfigError(
            "`personal.parameters` and `personal.frozen` must leave a trained parameter to share; got "
            f"{chosen.parameters} and {chosen.frozen}, which match all of {model.name}"
        )
    if personal and method.needs_gradients:
        raise ConfigError(
            f"`personal.parameters` must be empty with method.name = {method.name!r}, whose devices send gradients at "
            f"a common model; got {chosen.parameters}"
        )
    averaged, collected = statistics - personal - frozen, statistics - frozen
    _check_statistics(config, model, averaged)
    return ParameterRoles(shared, personal, frozen, averaged, collected, model.training is not None)


def _matched(key: str, patterns: Iterable[str], names: list[str], model: Model) -> frozenset[str]:
    for pattern in patterns:
        if not any(matches(name, pattern) for name in names):
            known = f"{', '.join(names[:4])}{', ...' if len(names) > 4 else ''}"
            hint = nearest(pattern, names)
            raise ConfigError(f"`{key}` must match parameters of {model.name} ({known}){hint}; got {pattern!r}")
    return frozenset(name for name in names if matches_any(name, patterns))


def _check_statistics(config: Config, model: Model, averaged: frozenset[str]) -> None:
    if model.training is not None and config.solver.batch_size == 0:
        raise ConfigError(
            f"`solver.batch_size` must be an integer >= 1 with {model.name}, whose statistics are those of "
            "mini-batches; got 0"
        )
    if averaged and config.privacy.clip > 0:
        raise ConfigError(
            f"`privacy.clip` must be 0 with the statistics of {model.name}, which it does not cover, unless "
            f"`personal.parameters` keeps them on the devices; got {config.privacy.clip}"
        )


@dataclass(frozen=True)
class _Divided(Method):
    """A method on the shared parameters of a model."""

    inner: Method = field(kw_only=True)
    roles: ParameterRoles = field(kw_only=True)

    @property
    def is_custom(self) -> bool:
        return self.inner.is_custom

    @property
    def second_draw(self) -> bool:
        return self.inner.second_draw

    @property
    def spends_budget(self) -> bool:
        return self.inner.spends_budget

    @property
    def mu_key(self) -> str:
        return self.inner.mu_key

    def check(self, solver: Solver) -> None:
        self.inner.check(solver)
        if not self.roles.statistics:
            return
        if not self.roles.has_training and not trains_by_itself(solver):
            raise ConfigError(
                "`solver` must be the one that `from_torch` returns with the model, or another that collects batch "
                f"statistics itself: the model has {min(self.roles.statistics)!r} and no function `training`; got "
                f"{solver.name!r}"
            )
        if not getattr(solver, "updates_statistics", False):
            raise ConfigError(
                "`solver.name` must be one that steps on mini-batches (sgd, adam, optax) for a model with batch "
                f"statistics, which are collected there; got {solver.name!r}"
            )

    def kept(self, work: Workload) -> NDArray[np.bool_]:
        return kept_devices(self.inner, work)

    def subproblem_mu(self, mu: float) -> float:
        return self.inner.subproblem_mu(mu)

    def shared(self, params: Tree) -> Tree:
        return _pick(params, self.roles.shared)

    def downloaded(self, params: Tree, sent: Tree) -> Tree:
        return _pick(params, self.roles.averaged), self.inner.downloaded(self.shared(params), sent)

    def start(self, params: Tree) -> Tree:
        return self.inner.start(self.shared(params))

    def start_device(self, params: Tree) -> Tree:
        remembered = self.inner.start_device(self.shared(params))
        if not self.roles.personal:
            return remembered
        return {"method": remembered, "personal": _pick(params, self.roles.personal)}

    def centre(self, server: Tree, params: Tree) -> Tree:
        return _join(params, self.inner.centre(server, self.shared(params)))

    def send(self, server: Tree, mean_gradient: Tree) -> Tree:
        return self.inner.send(server, None if mean_gradient is None else self.shared(mean_gradient))

    def device_model(self, params: Tree, state: Tree) -> Tree:
        if not self.roles.personal:
            return _join(params, self.inner.device_model(self.shared(params), state))
        own = self.inner.device_model(self.shared(params), state["method"])
        return _join(_join(params, state["personal"]), own)

    def personal_model(self, params: Tree, state: Tree) -> Tree:
        if not self.roles.personal:
            return _join(params, self.inner.personal_model(self.shared(params), state))
        own = self.inner.personal_model(self.shared(params), state["method"])
        return _join(_join(params, state["personal"]), own)

    def work(self, device: DeviceView) -> Reply:
        has_personal = bool(self.roles.personal)
        remembered = device.state["method"] if has_personal else device.state
        own = _join(device.received, device.state["personal"]) if has_personal else device.received
        found: list[Tree] = []

        def pose(posed: Posed, budget: int) -> tuple[Tree, int]:
            posed = checked_posed(self.inner, posed, self.shared(own))
            whole = Posed(
                anchor=_join(own, posed.anchor) if posed.anchor is not None else (own if has_personal else None),
                mu=self._whole_mu(posed.mu, own),
                linear=None if posed.linear is None else _join(jax.tree.map(np.zeros_like, own), posed.linear),
                start=_join(own, posed.start) if posed.start is not None else (own if has_personal else None),
                gamma=posed.gamma,
            )
            params, steps = device.pose(whole, budget)
            params = _join(params, _pick(own, self.roles.frozen))  # whatever the solver did
            found.append(params)
            return self.shared(params), steps

        view = device._replace(
            received=self.shared(device.received),
            state=remembered,
            gradient=None if device.gradient is None else self.shared(device.gradient),
            pose=pose,
            gradient_at=lambda params: self.shared(device.gradient_at(_join(own, params))),
        )
        reply = checked_reply(self.inner, self.inner.work(view), remembered)
        averaged, state = reply.averaged, reply.state
        if self.roles.averaged:
            averaged = {"reply": averaged, "statistics": _pick(found[0], self.roles.averaged)}
        if has_personal:
            method_state = remembered if state is None else state
            state = {"method": method_state, "personal": _pick(found[0], self.roles.personal)}
        return Reply(averaged, reply.summed, state)

    def unmoved(self, params: Tree) -> Tree:
        reply = self.inner.unmoved(self.shared(params))
        return {"reply": reply, "statistics": _pick(params, self.roles.averaged)} if self.roles.averaged else reply

    def shift(self, given: Tree, params: Tree) -> Tree:
        moved = self.inner.shift(self.shared(given), self.shared(params))
        if not self.roles.averaged:
            return moved
        return {"reply": moved, "statistics": jax.tree.map(np.zeros_like, _pick(params, self.roles.averaged))}

    def uploaded(self, reply: Reply) -> Tree:
        if not self.roles.averaged:
            return self.inner.uploaded(reply)
        return reply.averaged["statistics"], self.inner.uploaded(reply._replace(averaged=reply.averaged["reply"]))

    def merge(self, server: Tree, params: Tree, averaged: Tree, summed: Any) -> tuple[Tree, Tree]:
        if self.roles.averaged:
            params, averaged = _join(params, averaged["statistics"]), averaged["reply"]
        before = self.shared(params)
        merged = self.inner.merge(server, before, averaged, summed)
        shared, server = merged_model(self.inner, "merge", merged, server, before)
        return _join(params, shared), server

    def averaged_model(self, averaged: Tree | None, merged: Tree) -> Tree:
        if averaged is not None and self.roles.averaged:
            averaged = averaged["reply"]
        return _join(merged, self.inner.averaged_model(averaged, self.shared(merged)))

    def merge_replies(self, server: Tree, params: Tree, replies: Sequence[Received]) -> tuple[Tree, Tree]:
        if self.roles.averaged:
            statistics = [scale(each.reply.averaged["statistics"], each.weight) for each in replies]
            params = _join(params, functools.reduce(total, statistics))
            bare = [each.reply._replace(averaged=each.reply.averaged["reply"]) for each in replies]
            replies = [each._replace(reply=reply) for each, reply in zip(replies, bare, strict=True)]
        before = self.shared(params)
        merged = self.inner.merge_replies(server, before, replies)
        shared, server = merged_model(self.inner, "merge_replies", merged, server, before)
        return _join(params, shared), server

    def _whole_mu(self, mu: Mu, params: Tree) -> Mu:
        """Return mu for all parameters: 0 for personal ones and statistics, which have no w^t to stay close to."""
        if not (self.roles.personal or self.roles.averaged):
            return mu  # frozen ones do not move
        return {name: _mu(mu, name) if name in self.roles.shared else 0.0 for name in flatten_names(params)}


def _frozen(model: Model, names: frozenset[str]) -> Model:
    """Return the model with frozen parameters; their anchors are not needed, as those of a single kernel must be."""
    if not names:
        return model
    host = None if model.host is None else FrozenHost(model.host, names)
    return replace(model, frozen=tuple(sorted(names)), small=False, host=host)


def _mu(mu: Mu, name: str) -> float:
    if not isinstance(mu, Mapping):
        return mu
    return next((mu[pattern] for pattern in mu if matches(name, pattern)), 0.0)


def _pick(tree: Tree, names: frozenset[str]) -> Tree:
    """Return a tree with None in place of the leaves that are not named."""
    return map_names(lambda name, leaf: leaf if name in names else None, tree)


def _join(whole: Tree, part: Tree) -> Tree:
    """Return `whole` with the leaves of `part` in place of its own."""
    return overlay_names(whole, flatten_names(part))
