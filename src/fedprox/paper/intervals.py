"""Intervals over seeds: Student's t on the mean of paired differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedprox.core.student_t import t_quantile

__all__ = ["Interval", "combined", "interval"]


@dataclass(frozen=True)
class Interval:
    """A mean and the ends of its interval; both are None where one seed allows no interval."""

    mean: float
    low: float | None
    high: float | None
    error: float = math.nan  # the standard error of the mean
    freedom: float = 0.0  # degrees of freedom

    def text(self, form: str = "+.3f", factor: float = 1.0) -> str:
        """Return it as mean [low, high].

        >>> Interval(0.5, 0.25, 0.75).text(".2f")
        '0.50 [0.25, 0.75]'
        """
        if self.low is None or self.high is None:
            return format(factor * self.mean, form)
        low, high = sorted((factor * self.low, factor * self.high))
        return f"{format(factor * self.mean, form)} [{format(low, form)}, {format(high, form)}]"


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of one value per seed with its interval.

    >>> interval([1.0, 3.0]).text(".1f")  # the mean 2 plus and minus 12.7 standard errors of 1
    '2.0 [-10.7, 14.7]'
    """
    array = np.asarray(values, float)
    mean = float(array.mean())
    if len(array) < 2:
        return Interval(mean, None, None)
    return _around(mean, float(array.std(ddof=1)) / math.sqrt(len(array)), len(array) - 1)


def combined(parts: Sequence[Interval]) -> Interval:
    """Return the mean of independent means; its degrees of freedom are Welch's and Satterthwaite's.

    >>> combined([interval([1.0, 2.0, 3.0]), interval([3.0, 4.0, 5.0])]).mean
    3.0
    """
    mean = float(np.mean([part.mean for part in parts]))
    squares = [(part.error / len(parts)) ** 2 for part in parts]
    if any(part.freedom == 0 for part in parts):
        return Interval(mean, None, None)
    total = sum(squares)
    if total == 0:
        return Interval(mean, mean, mean, 0.0, 1.0)
    freedom = total**2 / sum(square**2 / part.freedom for square, part in zip(squares, parts, strict=True))
    return _around(mean, math.sqrt(total), freedom)


def _around(mean: float, error: float, freedom: float) -> Interval:
    reach = t_quantile(freedom) * error
    return Interval(mean, mean - reach, mean + reach, error, float(freedom))
