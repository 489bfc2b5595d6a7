"""What is wrong with a proximal term, inferred from the term that an update actually added.

After two steps with all samples the step itself reveals the gradient that was used, and without the gradient of F there
remains the term. It is compared with the right one, mu d with d = w - w^t, and with those of well-known mistakes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedprox.conformance.problem import Params

__all__ = ["CLOSE", "diagnose", "difference"]

CLOSE = 2e-3  # relative; a solver in single precision stays well below it


def diagnose(term: Params, distance: Params, mu: float) -> str | None:
    """Return the mistake that explains `term`, None where it is right; `distance` is d = w - w^t.

    >>> d = {"a": np.array([3.0, 4.0]), "b": np.array([1.0])}
    >>> diagnose({name: -0.5 * array for name, array in d.items()}, d, mu=0.5)
    'the proximal term has the wrong sign: it pushes away from w^t'
    """
    right = {name: mu * array for name, array in distance.items()}
    if difference(term, right, right) < CLOSE:
        return None
    for sentence, wrong in _mistakes(distance, mu):
        if difference(term, wrong, wrong) < CLOSE:
            return sentence
    if difference(term, {name: 0 * array for name, array in right.items()}, right) < CLOSE:
        return "there is no proximal term after the first step: mu is not used, or the anchor moves along with w"
    return _per_layer(term, right)


def difference(first: Params, second: Params, scale: Params) -> float:
    """Return ||first - second|| / ||scale||."""
    apart = sum(float(np.sum((first[name] - second[name]) ** 2)) for name in scale)
    size = sum(float(np.sum(scale[name] ** 2)) for name in scale)
    return float(np.sqrt(apart / size)) if size > 0 else float(np.sqrt(apart))


def _mistakes(d: Params, mu: float) -> Iterator[tuple[str, Params]]:
    """Yield well-known mistakes with the term that each of them leads to."""

    def scaled(factor: float) -> Params:
        return {name: factor * mu * array for name, array in d.items()}

    norm = float(np.sqrt(sum(np.sum(array**2) for array in d.values())))
    entries = sum(array.size for array in d.values())
    each_norm = {name: float(np.linalg.norm(array)) for name, array in d.items()}
    missing = "the square is missing: the term is that of the norm ||w - w^t||"
    yield "the proximal term has the wrong sign: it pushes away from w^t", scaled(-1)
    for factor in (1.0, 0.5):
        yield missing, scaled(factor / norm)
        yield f"{missing}, layer by layer", {name: factor * mu * d[name] / each_norm[name] for name in d}
    layers = len(d)
    yield (
        f"the proximal term is {layers} times too large: it is added once per layer, or mu/2 was taken for mu",
        scaled(layers),
    )
    yield "the proximal term is half as large as it should be: its gradient is mu (w - w^t), not mu/2", scaled(0.5)
    for factor in (1.0, 2.0):
        yield (
            "the proximal term is the mean of the squares, not their sum: it is divided by the number of parameters",
            scaled(factor / entries),
        )
        yield (
            "the proximal term is the mean of the squares, not their sum: it is divided by each layer's size",
            {name: factor * mu * array / array.size for name, array in d.items()},
        )


def _per_layer(term: Params, right: Params) -> str:
    """Return how large the term is in each layer, if no single mistake explains it."""
    ratios = {name: float(np.sum(term[name] * right[name]) / np.sum(right[name] ** 2)) for name in right}
    told = ", ".join(f"{ratio:.3g} times in {name!r}" for name, ratio in ratios.items())
    along = {name: ratio * right[name] for name, ratio in ratios.items()}
    if difference(term, along, right) < CLOSE:
        least, most = min(ratios.values()), max(ratios.values())
        if most - least < CLOSE * max(abs(most), abs(least)):
            return f"the proximal term is {most:.3g} times as large as it should be, in every layer"
        counted = (
            "layers are counted more than once" if max(ratios.values()) > 1 + CLOSE else "layers are not treated alike"
        )
        return f"{counted}: the proximal term is there {told}"
    return f"the proximal term is not mu (w - w^t); along that direction it is there {told}"
