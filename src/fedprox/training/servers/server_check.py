"""Checks, before the run starts, of what a server that merges replies as they arrive cannot do.

A late reply must mean the same as one in time: the update of a single device from the model that it was given. Methods
declare what else they need.
"""

from __future__ import annotations

from collections.abc import Iterator

from fedprox.config import Config
from fedprox.core.errors import ConfigError
from fedprox.core.trees import Tree
from fedprox.methods import Method
from fedprox.methods.merging import MergeRule
from fedprox.participation.clock import Clock
from fedprox.participation.own_choices import OwnChoices
from fedprox.training.plan import check_plan

__all__ = ["check_late", "check_server"]


def check_server(
    config: Config,
    method: Method,
    rule: MergeRule,
    clock: Clock | None,
    choices: OwnChoices,
    params: Tree,
    devices: int,
) -> None:
    """Refuse rounds that cannot be planned, and what has no meaning where replies are merged as they arrive."""
    check_plan(method, clock, config.devices.per_round, devices)
    systems = config.systems
    if choices.systems is not None and systems.server != "synchronous":
        raise ConfigError(
            "`systems.server` must be 'synchronous' with a systems model from Python, which has no clock; "
            f"got {systems.server!r}"
        )
    if not systems.runs_on_events:
        return
    for reason in _reasons(config, method, rule, choices, params):
        raise ConfigError(
            f"`systems.server` must be 'synchronous' or 'over_selection' with {reason}; got {systems.server!r}"
        )
    if systems.server == "buffered" and systems.buffer > devices:
        raise ConfigError(
            f"`systems.buffer` must be at most {devices}, the number of devices, which reply once to a model; "
            f"got {systems.buffer}"
        )


def check_late(config: Config, method: Method, rule: MergeRule, params: Tree) -> None:
    """Refuse late replies of real devices where they have no meaning."""
    if config.deploy.late == "refuse":
        return
    for reason in _reasons(config, method, rule, OwnChoices(), params):
        raise ConfigError(f"`deploy.late` must be 'refuse' with {reason}; got 'merge'")


def _reasons(config: Config, method: Method, rule: MergeRule, choices: OwnChoices, params: Tree) -> Iterator[str]:
    named = f"method.name = {method.name!r}"
    if method.needs_gradients or method.needs_final_gradients or method.second_draw:
        yield f"{named}, which needs gradients of several devices at one model"
    if method.needs_every_reply:
        yield f"{named}, which compares the replies to one model"
    if method.start_device(params) is not None:
        remember = "whose devices keep state from round to round"
        yield "`personal.parameters`, which devices keep" if config.personal.parameters else f"{named}, {remember}"
    if rule.needs_every_reply:
        yield f"merge.rule = {rule.name!r}, which compares the replies to one model"
    if config.privacy.clip > 0:
        yield "`privacy.clip`, whose guarantee is for rounds of K devices"
    if choices.has_own_sampler(config):
        yield "a sampler of your own, which chooses the devices of a whole round"
