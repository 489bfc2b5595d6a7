"""How far a measure over a sample of devices may be from the same measure over all of them.

The gradient variance and B(w) are functions of totals over devices, sum_k n_k ||grad F_k||^2 and sum_k n_k grad F_k,
so they are biased when the totals are estimated: the mean gradient of few devices is longer than that of all. The
drawn devices (`measured_sample`), in their random order, form G groups of equal size. With theta of all groups and
theta_g of all but group g, reweighted, the delete-a-group jackknife (Shao and Tu, 1995) gives

    bias     = u (G - 1) (mean_g theta_g - theta)
    variance = u (G - 1) / G  sum_g (theta_g - mean_g theta_g)^2

where u is the share that was not seen, and the interval theta - bias +- t sqrt(variance) with Student's t of G - 1
degrees of freedom. It needs no pass over the data beyond the one that measures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.core.student_t import t_quantile
from fedprox.core.trees import Tree

__all__ = ["Interval", "Totals", "interval"]

LEAST_GROUPS = 5


@dataclass(frozen=True)
class Interval:
    """A confidence interval."""

    low: float
    high: float


@dataclass(frozen=True)
class Totals:
    """Weighted sums over the devices of each group: one entry per group."""

    samples: NDArray[np.float64]  # sum n_k
    norm2: NDArray[np.float64]  # sum n_k ||grad F_k||^2
    gradient: list[Tree]  # sum n_k grad F_k
    certain: int = 0  # the first groups, whose devices are measured for certain and never left out

    @property
    def drawn(self) -> int:
        """The number of groups that may be left out, G."""
        return len(self.samples) - self.certain

    def left_out(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return E_k ||grad F_k||^2 and ||grad f||^2 of all groups, first, and then with each group left out."""
        known, drawn = slice(self.certain), slice(self.certain, None)
        rows = np.stack([_flat(each) for each in self.gradient])
        fixed, free = rows[known].sum(axis=0), rows[drawn]
        # the gradient without group g is a - s T_g, with a = T_certain + s T_drawn; its norm comes from products
        stretch = self.drawn / (self.drawn - 1)
        stretched = fixed + stretch * free.sum(axis=0)
        own = np.einsum("gi,gi->g", free, free)
        norms2 = stretched @ stretched - 2 * stretch * (free @ stretched) + stretch**2 * own
        whole = rows.sum(axis=0)
        samples, norm2 = (
            each[known].sum() + np.append(each[drawn].sum(), stretch * (each[drawn].sum() - each[drawn]))
            for each in (self.samples, self.norm2)
        )
        return norm2 / samples, np.maximum(np.append(whole @ whole, norms2), 0.0) / samples**2


def interval(
    totals: Totals,
    measure: Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]],
    unseen: float,
) -> Interval | None:
    """Return the interval for measure(E_k ||grad F_k||^2, ||grad f||^2) when the share `unseen` was not measured.

    None if there are too few groups, or a value is not finite.

    >>> alike = Totals(np.full(5, 10.0), np.full(5, 40.0), [np.array([20.0])] * 5)
    >>> interval(alike, lambda mean_norm2, norm2_of_mean: mean_norm2 - norm2_of_mean, unseen=0.5)
    Interval(low=0.0, high=0.0)
    """
    groups = totals.drawn
    if groups < LEAST_GROUPS:
        return None
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        values = measure(*totals.left_out())
    if not np.isfinite(values).all():
        return None
    whole, without = values[0], values[1:]
    bias = unseen * (groups - 1) * (without.mean() - whole)
    variance = unseen * (groups - 1) / groups * float(((without - without.mean()) ** 2).sum())
    half = t_quantile(groups - 1) * variance**0.5
    return Interval(float(whole - bias - half), float(whole - bias + half))


def _flat(tree: Tree) -> NDArray[np.float64]:
    return np.concatenate([np.ravel(leaf).astype(np.float64) for leaf in jax.tree.leaves(tree)])
