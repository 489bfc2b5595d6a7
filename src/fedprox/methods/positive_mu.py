"""`method.mu` of a method that needs a positive one; its default there is 1."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedprox.config.fields import LARGEST, SMALLEST
from fedprox.core.errors import ConfigError

__all__ = ["PositiveMu", "check_positive", "positive_mu"]

PositiveMu = Annotated[
    Annotated[float, Field(ge=SMALLEST, le=LARGEST, allow_inf_nan=False)] | str,
    Field(description="a number > 0, 'adaptive', 'drift' or 'auto'"),
]


def check_positive(mu: float | str) -> None:
    """Refuse a number that is not positive; a name is that of a controller."""
    if not isinstance(mu, str) and not mu > 0:
        raise ConfigError(f"`method.mu` must be a number > 0; got {mu!r}")


def positive_mu(mu: float, default: float | str) -> float:
    """Return the round's mu, or where that is 0, as with a controller at its start, the method's own.

    >>> positive_mu(0.5, 1.0), positive_mu(0.0, 2.0), positive_mu(0.0, "adaptive")
    (0.5, 2.0, 1.0)
    """
    return mu or (1.0 if isinstance(default, str) else default)
