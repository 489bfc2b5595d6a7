"""The measures of a model from what the devices report of it: the same numbers as `fedprox.measures`, pooled.

    f(w) = sum_k n_k F_k(w) / sum_k n_k        (Equation 1)

over the devices that answered. Where the dissimilarity is measured, devices also send grad F_k(w).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from fedprox.core.trees import quiet, squared_norm
from fedprox.deploy.messages import Evaluation, Introduction, Named
from fedprox.measures import Measures, dissimilarity

__all__ = ["evaluation_rows", "pooled", "reason_to_ignore"]


def reason_to_ignore(evaluation: Evaluation, said: Introduction, params: Named, *, gradient: bool) -> str | None:
    """Return why a report cannot be counted, or None for a good one."""
    sizes, expected = (evaluation.train_samples, evaluation.test_samples), (said.train_samples, said.test_samples)
    if sizes != expected:
        return f"it reports on {sizes} training and test samples, but introduced itself with {expected}"
    losses = [evaluation.train_loss, *([evaluation.test_loss] if evaluation.test_loss is not None else [])]
    if not all(math.isfinite(loss) for loss in losses):
        return "its loss is not finite"
    for accuracy in (evaluation.train_accuracy, evaluation.test_accuracy):
        if accuracy is not None and not 0 <= accuracy <= 1:
            return f"an accuracy must be in [0, 1]; got {accuracy}"
    if gradient:
        shapes = {name: array.shape for name, array in (evaluation.gradient or {}).items()}
        if shapes != {name: array.shape for name, array in params.items()}:
            return "its gradient does not have the shapes of the model"
        if not all(np.isfinite(array).all() for array in (evaluation.gradient or {}).values()):
            return "its gradient is not finite"
    return None


@quiet
def pooled(reports: Mapping[int, Evaluation], *, gradient: bool) -> Measures:
    """Return the measures over the devices that reported; a loss that is not a number where none did.

    >>> report = Evaluation(3, 1.0, 1.0, 0, None, None), Evaluation(1, 5.0, 0.0, 0, None, None)
    >>> pooled(dict(enumerate(report)), gradient=False).train_loss
    2.0
    """
    known = [reports[device] for device in sorted(reports)]
    if not known:
        return Measures(math.nan, None, None, math.nan if gradient else None, math.nan if gradient else None)
    sizes = np.array([one.train_samples for one in known], np.float64)
    total = float(sizes.sum())
    variance = b = None
    if gradient:
        gradients = [one.gradient or {} for one in known]
        mean_norm2 = float(sizes @ [squared_norm(one) for one in gradients]) / total
        whole = {
            name: sum(size * one[name].astype(np.float64) for size, one in zip(sizes, gradients, strict=True))
            for name in gradients[0]
        }
        norm2_of_mean = squared_norm(whole) / total**2
        variance, b = max(mean_norm2 - norm2_of_mean, 0.0), dissimilarity(mean_norm2, norm2_of_mean)
    return Measures(
        float(sizes @ [one.train_loss for one in known]) / total,
        _share([(one.train_samples, one.train_accuracy) for one in known]),
        _share([(one.test_samples, one.test_accuracy) for one in known]),
        variance,
        b,
    )


def evaluation_rows(reports: Mapping[int, Evaluation], devices: range) -> list[dict[str, object]]:
    """Return the rows of `evaluation.jsonl`; a device that did not report has samples 0 and nothing else."""
    rows: list[dict[str, object]] = []
    for device in devices:
        one = reports.get(device, Evaluation(0, math.nan, None, 0, None, None))
        rows.append(
            {
                "device": device,
                "train_samples": one.train_samples,
                "train_loss": one.train_loss if one.train_samples else None,
                "train_accuracy": one.train_accuracy,
                "test_samples": one.test_samples,
                "test_loss": one.test_loss,
                "test_accuracy": one.test_accuracy,
                "name": str(device),
            }
        )
    return rows


def _share(parts: list[tuple[int, float | None]]) -> float | None:
    """Pool accuracies over all examples, in whole right answers."""
    known = [(samples, accuracy) for samples, accuracy in parts if samples and accuracy is not None]
    right = sum(round(samples * accuracy) for samples, accuracy in known)
    return right / sum(samples for samples, _ in known) if known else None
