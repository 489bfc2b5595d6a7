"""FedRep's local work (Collins, Hassani, Mokhtari and Shakkottai, "Exploiting Shared Representations", 2021).

With personal parameters (`[personal] parameters`, the head) a device first takes SGD steps on these alone, from its
last ones and with the shared ones at w^t, and then on the shared ones alone, with its new head. `share` is the head's
part of the budget, rounded down, and each part gets at least one step if there are two. Both parts use the mini-batches
of the round from the first one. The source takes many epochs for the head and one for the rest: `share` = 0.9 with E =
10 is nine and one. With `share` = 0 the head is not trained.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from fedprox.config import Config
from fedprox.config.fields import BelowOne
from fedprox.core.errors import ConfigError
from fedprox.core.name_patterns import matches_any
from fedprox.core.trees import Tree, flatten_names
from fedprox.models import Model
from fedprox.models.untrained import FrozenHost
from fedprox.solvers.sgd import sgd
from fedprox.solvers.solver import LocalProblem

__all__ = ["PersonalFirst", "personal_first"]


def personal_first(config: Config, share: BelowOne = 0.5) -> PersonalFirst:
    """Return the solver for the personal parameters of a config."""
    if not config.personal.parameters:
        raise ConfigError(
            "`solver.name` = 'personal_first' must be used with `personal.parameters`, which it trains first; got []"
        )
    if config.solver.gamma > 0:
        raise ConfigError(
            "`solver.gamma` must be 0 with solver.name = 'personal_first', which never sees the whole gradient of a "
            f"subproblem; got {config.solver.gamma}"
        )
    return PersonalFirst(tuple(config.personal.parameters), share)


@dataclass(frozen=True)
class PersonalFirst:
    """SGD on personal parameters, then on the shared ones."""

    personal: tuple[str, ...]
    share: float
    name: str = "personal_first"
    is_sgd: bool = False

    def solve(self, local: LocalProblem) -> tuple[Tree, int]:
        """Return the last iterate and the steps of both parts."""
        names = [*flatten_names(local.start)]
        head = frozenset(name for name in names if matches_any(name, self.personal))
        first = int(self.share * local.budget)
        if self.share > 0 and local.budget > 1:
            first = max(first, 1)
        own = replace(local, model=_only(local.model, frozenset(names) - head), budget=first)
        found, taken = sgd().solve(own)
        rest = replace(local, model=_only(local.model, head), budget=local.budget - first, start_at=found)
        found, more = sgd().solve(rest)
        return found, taken + more


@lru_cache(maxsize=16)  # one object for one model, so that compiled programs are found again
def _only(model: Model, fixed: frozenset[str]) -> Model:
    """Return the model with these parameters frozen as well."""
    frozen: dict[str, Any] = {"frozen": (*model.frozen, *sorted(fixed)), "small": False}
    if model.host is not None:
        frozen["host"] = FrozenHost(model.host, fixed)
    return replace(model, **frozen)
