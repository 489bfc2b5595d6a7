"""What chooses mu, and what it sees.

A controller is an immutable object: `mu` is what the next round uses, and `after(signals)` is the controller that has
seen one more round. Its `state` is what its constructor takes, in plain JSON values, and goes into the checkpoint.

A class may declare `learns = False` if it ignores the signals, and `needs_every_loss = True` if it needs the loss of
every round.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fedprox.core.errors import RunError, short

__all__ = ["MuController", "Signals", "after", "current_mu", "learns", "saved_state"]


@dataclass(frozen=True)
class Signals:
    """What a controller sees of a round, all of it already known to the server; the initial model is round 0.

    Attributes:
      loss: the training loss f(w^t), None where the round was not measured.
      weights, drift2: for each device kept, its weight in the average and ||w_k - w^t||^2; empty in round 0.
      mean_drift2: ||sum_k weight_k (w_k - w^t)||^2, of the average before any longer or shorter step of the server.
      coverage: sum_k p_k over those devices, the share of all training samples that they hold; 1 where all took part.
      dissimilarity: B(w^{t+1}) (Definition 3), None where it was not measured.
    """

    loss: float | None
    weights: tuple[float, ...] = ()
    drift2: tuple[float, ...] = ()
    mean_drift2: float = 0.0
    coverage: float = 0.0
    dissimilarity: float | None = None

    @property
    def agreement(self) -> float | None:
        """The agreement q = (r - s) / (1 - s) of the devices' updates d_k = w_k - w^t.

        r = ||sum p_k d_k||^2 / sum p_k ||d_k||^2 is 1 where all updates are equal, and s = sum p_k^2 on average where
        they are independent of each other with mean zero. So q is 1 in the first case and 0 in the second, whatever
        the number of devices. It is None with fewer than two devices, or if none moved.

        >>> Signals(None, weights=(0.5, 0.5), drift2=(1.0, 1.0), mean_drift2=1.0).agreement
        1.0
        >>> Signals(None, weights=(0.5, 0.5), drift2=(1.0, 1.0), mean_drift2=0.5).agreement  # at right angles
        0.0
        """
        independent = sum(weight * weight for weight in self.weights)
        ratio = self.ratio
        return None if math.isnan(ratio) or not independent < 1 else (ratio - independent) / (1 - independent)

    @property
    def ratio(self) -> float:
        """The ratio r = ||sum p_k d_k||^2 / sum p_k ||d_k||^2, not a number where no device moved.

        >>> Signals(None, weights=(0.5, 0.5), drift2=(1.0, 1.0), mean_drift2=0.5).ratio
        0.5
        """
        mean2 = sum(weight * drift2 for weight, drift2 in zip(self.weights, self.drift2, strict=True))
        return self.mean_drift2 / mean2 if 0 < mean2 < math.inf and math.isfinite(self.mean_drift2) else math.nan


class MuController(Protocol):
    """What chooses mu."""

    @property
    def mu(self) -> float:
        """The mu of the next round."""

    def after(self, signals: Signals) -> MuController:
        """Return the controller after one more round, the initial model first."""

    def state(self) -> dict[str, Any]:
        """Return what `restore` needs to continue: the arguments of the constructor."""


def current_mu(controller: MuController) -> float:
    """Return the mu of the next round; raises an error if it is not a number >= 0."""
    mu = controller.mu
    try:
        number = float(mu)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number < math.inf or isinstance(mu, (bool, str)):
        raise RunError(f"`mu` of the controller {type(controller).__name__} must be a number >= 0; got {short(mu)}")
    return number


def after(controller: MuController, signals: Signals) -> MuController:
    """Return the controller after one more round; raises an error if it is none."""
    found = controller.after(signals)
    if not all(hasattr(found, member) for member in ("mu", "after", "state")):
        raise RunError(
            f"`after` of the controller {type(controller).__name__} must return a controller, with `mu`, `after` and "
            f"`state`; got {short(found)}"
        )
    return found


def saved_state(controller: MuController) -> dict[str, Any]:
    """Return the controller's state as a checkpoint keeps it; raises an error if it is not one of plain values."""
    state = controller.state()
    try:
        if not isinstance(state, dict):
            raise TypeError
        plain: dict[str, Any] = json.loads(json.dumps(state, default=_plain))
    except (TypeError, ValueError):
        raise RunError(
            f"`state` of the controller {type(controller).__name__} must be a dict of plain JSON values, by the "
            f"names of its constructor's arguments; got {short(state)}"
        ) from None
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError


def learns(controller: MuController) -> bool:
    """Return whether a controller uses the signals of the rounds; True unless it declares otherwise."""
    return bool(getattr(controller, "learns", True))
