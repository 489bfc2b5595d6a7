"""How much work the chosen devices of a round do, decided by the systems model that the config names.

A systems model is a function of a `WorkView` that returns a budget for each listed device, in mini-batch steps: all of
E epochs, fewer steps for a straggler, 0 for one that does not answer. (The clock, which also decides which devices are
available and what time it is, is not such a function.) It is built again for every round and receives all that it
needs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedprox.config import Config
from fedprox.config.parts import build_part
from fedprox.core.errors import RunError, short
from fedprox.core.own_code import own_code
from fedprox.participation.budget import steps_per_epoch
from fedprox.participation.own_choices import SystemsModel
from fedprox.participation.sampling import Cohort
from fedprox.participation.stragglers import Workload, WorkView

__all__ = ["give_work"]


def give_work(config: Config, cohort: Cohort, *, round: int, systems: SystemsModel | None = None) -> Workload:
    """Return the work of the listed devices of a round; `systems` takes the place of what the config names."""
    epochs = config.solver.epochs
    view = WorkView(
        round=round,
        cohort=cohort,
        epochs=epochs,
        batch_size=config.solver.batch_size,
        stragglers=config.devices.stragglers,
        most_epochs=config.compat.most_epochs(epochs),
        seed=config.seed,
    )
    if systems is not None:
        name, model = getattr(systems, "__qualname__", type(systems).__qualname__), systems
    else:
        name, model = (
            config.systems.model,
            build_part("systems", "systems.model", config.systems, {"seed": config.seed}),
        )
    with own_code(f"the systems model {name!r}"):
        given = model(view)
    return given if isinstance(given, Workload) else _checked(given, name, view)


def _checked(given: object, name: str, view: WorkView) -> Workload:
    budget = np.asarray(given)
    if budget.shape != (len(view.cohort),) or budget.dtype.kind not in "iu" or budget.min(initial=0) < 0:
        raise RunError(
            f"the systems model {name!r} must return a number of steps, an integer >= 0, for each of "
            f"{len(view.cohort)} devices; got {short(given)}"
        )
    per_epoch: NDArray[np.int64] = np.asarray(steps_per_epoch(view.cohort.samples, view.batch_size))
    work = budget.astype(np.int64)
    return Workload(work < view.full_budget, work / per_epoch, work)
