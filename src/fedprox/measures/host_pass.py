"""The walk over a group of devices for a model that computes on the host (`fedprox.models.host_model`).

Without gradients the rows of consecutive devices are taken together, since it does not matter for them where a device
ends; with gradients each device is taken by itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from fedprox.core.trees import Tree, squared_norm, to_numpy
from fedprox.models.host_model import HostModel

__all__ = ["Places", "walk_on_host"]


class Places(NamedTuple):
    """The rows of the measured devices, and the weights of their gradients."""

    begins: Any
    sizes: Any
    weights: tuple[Any, ...] = ()  # one for every weighted sum of gradients that is asked for; () for no gradients


def walk_on_host(
    host: HostModel, params: Tree, x: Any, y: Any, places: Places, span: Any
) -> tuple[Any, Any, Any, tuple[Tree, ...]]:
    """Return what the compiled walk of `pass_program` does, one entry per device of the group."""
    first, count = (int(number) for number in span)
    rows, labels = np.asarray(x), np.asarray(y)
    begins, sizes = (np.asarray(each)[first : first + count].astype(np.int64) for each in (places.begins, places.sizes))
    weights = [np.asarray(weight)[first : first + count] for weight in places.weights]
    params = to_numpy(params)
    if not weights:
        return *_without_gradients(host, params, rows, labels, begins, sizes), np.zeros(count), ()
    losses, correct, norms2 = np.zeros(count), np.zeros(count, np.int64), np.zeros(count)
    totals = [jax.tree.map(np.zeros_like, params) for _ in weights]
    with host.at(params) as model:
        for k, (begin, size) in enumerate(zip(begins.tolist(), sizes.tolist(), strict=True)):
            losses[k], correct[k], gradient = model.sums(rows[begin : begin + size], labels[begin : begin + size])
            norms2[k] = squared_norm(gradient) / size**2
            for weight, total in zip(weights, totals, strict=True):
                _add(total, gradient, weight[k])
    return losses, correct, norms2, tuple(totals)


def _without_gradients(
    host: HostModel, params: Tree, x: Any, y: Any, begins: Any, sizes: Any
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    losses, correct = np.zeros(len(sizes)), np.zeros(len(sizes), np.int64)
    breaks = np.flatnonzero(begins[1:] != begins[:-1] + sizes[:-1]) + 1  # where the next device's rows do not follow
    with host.at(params) as model:
        for run in np.split(np.arange(len(sizes)), breaks):
            if not len(run):
                continue
            begin, ends = int(begins[run[0]]), np.cumsum(sizes[run])
            each, hits = model.losses(x[begin : begin + int(ends[-1])], y[begin : begin + int(ends[-1])])
            starts = ends - sizes[run]
            losses[run] = np.add.reduceat(each.astype(np.float64), starts)
            correct[run] = np.add.reduceat(hits.astype(np.int64), starts)
    return losses, correct


def _add(total: Tree, gradient: Tree, weight: Any) -> None:
    """Add weight * gradient to a sum, in place."""
    for so_far, leaf in zip(jax.tree.leaves(total), jax.tree.leaves(gradient), strict=True):
        np.add(so_far, np.multiply(leaf, weight, dtype=so_far.dtype), out=so_far)
