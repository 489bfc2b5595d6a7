"""Student's t: the half-width of a 95% interval, in standard errors."""

from __future__ import annotations

__all__ = ["LEVEL", "t_quantile"]

LEVEL = 0.95


def t_quantile(freedom: float) -> float:
    """Return the two-sided quantile of Student's t for an interval of 95%.

    >>> round(t_quantile(4), 3), round(t_quantile(19), 3)
    (2.776, 2.093)
    """
    from scipy.special import stdtrit  # scipy comes with jax

    return float(stdtrit(freedom, (1 + LEVEL) / 2))
