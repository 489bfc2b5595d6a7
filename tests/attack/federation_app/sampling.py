"""Who takes part in the attacked federation: the damaged node in every round, and honest ones drawn beside it."""

import numpy as np

from fedprox.participation.sampling import SamplingView


def with_the_last(view: SamplingView) -> np.ndarray:
    """Return the last device and `per_round` - 1 others."""
    last = len(view.sizes) - 1
    return np.append(view.random().choice(last, view.per_round - 1, replace=False), last)
