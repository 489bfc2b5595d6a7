"""Measuring over reports: each device measures the model on its own samples, and the server pools the numbers.

    f(w) = sum_k n_k F_k(w) / sum_k n_k        (Equation 1)

over the devices that answered. Where the dissimilarity is measured, devices also send grad F_k(w).

One report must not end a run: a loss must be finite and at most 10^4 times the largest of the others, and `[stop]`
looks at the trimmed mean, without the largest and the smallest tenth of the reports: at least one of each, from three
reports on.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import MessageType, RecordDict
from numpy.typing import NDArray

from fedprox.config import Config
from fedprox.core.trees import Tree, flatten_names, quiet, squared_norm
from fedprox.deploy.message_exchange import Post
from fedprox.deploy.message_records import Named, attempt
from fedprox.deploy.messages import Evaluation, Introduction, ModelQuery
from fedprox.deploy.personal_versions import PersonalVersions
from fedprox.deploy.pooled_metrics import pool_metrics, wrong_metrics
from fedprox.deploy.roster import Roster
from fedprox.deploy.work_times import WorkTimes
from fedprox.measures import Measures, add_personal, dissimilarity
from fedprox.measures.metrics import Metric, build_metrics
from fedprox.methods.parameter_roles import ParameterRoles

__all__ = ["ReportMeasurer", "out_of_line", "pooled", "reason_to_ignore", "trimmed_mean"]

_TIMES, _TRIM = 1e4, 0.1
_LOG = logging.getLogger("fedprox.deploy")


class ReportMeasurer:
    """Measures models by asking all devices of a federation.

    Args:
      busy: the devices at work, where others do not wait for them. They are not asked, and every device counts with its
        last report, which may be of an earlier model.
    """

    def __init__(
        self,
        config: Config,
        roster: Roster,
        post: Post,
        roles: ParameterRoles | None = None,
        personal: PersonalVersions | None = None,
        times: WorkTimes | None = None,
        busy: Callable[[], set[int]] | None = None,
    ) -> None:
        self._config, self._roster, self._post = config, roster, post
        self._roles, self._personal = roles or ParameterRoles(), personal
        self._times = times or WorkTimes(config.deploy.deadline)
        self._busy = busy
        self._metrics = build_metrics(config.measure)
        self._reports: dict[int, Evaluation] = {}
        self._reported: Tree = None  # the model that the reports are of

    def compile(self, params: Tree) -> None:
        """Do nothing: the devices compile, each for itself."""

    def measure(self, params: Tree, own: Mapping[int, Tree] | None = None) -> Measures | None:
        """Return the measures over the devices that report; None if none does, which says nothing about the model."""
        if self._busy is None:
            self._reports, self._reported = self._ask(params, own), params
        else:
            free = set(self._roster.devices) - self._busy()
            self._reports |= self._ask(params, own, free, self._config.deploy.grace)
        if not self._reports:
            return None
        return pooled(self._reports, gradient=self._config.measure.dissimilarity, metrics=self._metrics)

    def losses_of(
        self, params: Tree, devices: NDArray[np.int64], own: Mapping[int, Tree] | None = None
    ) -> dict[int, float]:
        """Return the losses that some devices have reported of a model; nothing where it was not measured."""
        reports = self._reports if self._reported is params else {}
        return {device: reports[device].train_loss for device in devices.tolist() if device in reports}

    def personal_accuracies(self, params: Tree, personal: Mapping[int, Tree]) -> dict[str, float | None]:
        """Return the test accuracy of the devices' second models over the devices that report."""
        reports = self._ask(params, personal)
        return {"personal_test_accuracy": _share([(one.test_samples, one.test_accuracy) for one in reports.values()])}

    def per_device(
        self, params: Tree, own: Mapping[int, Tree] | None = None, personal: Mapping[int, Tree] | None = None
    ) -> list[dict[str, Any]]:
        """Return the last report of each device; one that did not report has samples 0 and nothing else."""
        if self._reported is not params:
            self._reports, self._reported = self._ask(params, own), params
        rows = _evaluation_rows(self._reports, self._roster.devices)
        if personal is None:
            return rows
        return add_personal(rows, _evaluation_rows(self._ask(params, personal), self._roster.devices))

    def _ask(
        self,
        params: Tree,
        own: Mapping[int, Tree] | None,
        devices: Collection[int] | None = None,
        longest: float = math.inf,
    ) -> dict[int, Evaluation]:
        """Ask every device, or some, to measure the model; one with a model of its own is sent that in its place."""
        named, seconds = flatten_names(self._roles.exchanged(params)), self._times.longest()
        nodes = {self._roster.node(device): device for device in self._asked(devices)}
        others = {device: flatten_names(self._roles.exchanged(model)) for device, model in (own or {}).items()}
        common = (
            None if self._personal is not None else ModelQuery(named).to_records()
        )  # one for all, where nothing tells them apart
        questions = {
            node: common if common and device not in others else self._question(device, others.get(device, named))
            for node, device in nodes.items()
        }
        wait = min(seconds + self._config.deploy.grace, longest) if seconds else 0.0
        answers = self._post.ask(questions, MessageType.EVALUATE, seconds=wait)
        reports: dict[int, Evaluation] = {}
        for node, answer in answers.items():
            device, problem = nodes[node], answer.problem
            if answer.records is not None:
                report, problem = self._checked(device, answer.records, named)
                if report is not None:
                    reports[device] = report
            if problem:
                self._say_ignored(device, problem)
        for device in out_of_line(reports):
            del reports[device]
            self._say_ignored(device, f"its loss is more than {_TIMES:g} times the largest of the others")
        return reports

    def _asked(self, devices: Collection[int] | None) -> Collection[int]:
        return self._roster.devices if devices is None else sorted(devices)

    def _say_ignored(self, device: int, problem: str) -> None:
        _LOG.warning("round %s: device %d is not measured: %s", self._post.group, device, problem)

    def _question(self, device: int, params: Named) -> RecordDict:
        return ModelQuery(params, None if self._personal is None else self._personal.to_read(device)).to_records()

    def _checked(self, device: int, records: Any, params: Named) -> tuple[Evaluation | None, str | None]:
        """Return a device's report, or why it cannot be counted."""
        report, problem = attempt(lambda: Evaluation.from_records(records, params))
        if report is None:
            return None, problem
        said = self._roster.samples(device)
        wants_gradient = self._config.measure.dissimilarity
        problem = reason_to_ignore(report, said, params, gradient=wants_gradient, metrics=self._metrics)
        return (report, None) if problem is None else (None, problem)


def reason_to_ignore(
    evaluation: Evaluation, said: Introduction, params: Named, *, gradient: bool, metrics: Iterable[str] = ()
) -> str | None:
    """Return why a report cannot be counted, or None for a good one; `metrics` are the names of those asked for."""
    sizes, expected = (evaluation.train_samples, evaluation.test_samples), (said.train_samples, said.test_samples)
    if sizes != expected:
        return f"it reports on {sizes} training and test samples, but registered with {expected}"
    losses = [evaluation.train_loss, *([evaluation.test_loss] if evaluation.test_loss is not None else [])]
    if not all(math.isfinite(loss) for loss in losses):
        return "its loss is not finite"
    for accuracy in (evaluation.train_accuracy, evaluation.test_accuracy):
        if accuracy is not None and not 0 <= accuracy <= 1:
            return f"an accuracy must be in [0, 1]; got {accuracy}"
    if reason := wrong_metrics(evaluation.metrics, metrics):
        return reason
    return _wrong_gradient(evaluation.gradient or {}, params) if gradient else None


def _wrong_gradient(gradient: Named, params: Named) -> str | None:
    if {name: array.shape for name, array in gradient.items()} != {name: each.shape for name, each in params.items()}:
        return "its gradient does not have the shapes of the model"
    if not all(np.isfinite(array).all() for array in gradient.values()):
        return "its gradient is not finite"
    return None


def out_of_line(reports: Mapping[int, Evaluation]) -> list[int]:
    """Return the devices that report an implausibly large loss, given at least two others.

    >>> losses = {0: 2.0, 1: 3.0, 2: 1e9}
    >>> out_of_line({device: Evaluation(1, loss, None, 0, None, None) for device, loss in losses.items()})
    [2]
    """
    if len(reports) < 3:
        return []
    sizes = {device: abs(report.train_loss) for device, report in reports.items()}
    largest, second = sorted(sizes.values(), reverse=True)[:2]
    return [device for device, size in sizes.items() if size == largest > _TIMES * second > 0]


def trimmed_mean(losses: NDArray[np.float64], samples: NDArray[np.float64]) -> float:
    """Return the mean over samples without the devices of the largest and smallest losses.

    >>> trimmed_mean(np.array([1.0, 2.0, 4.0, 1e6]), np.array([5.0, 1.0, 3.0, 9.0]))
    3.5
    """
    cut = max(1, int(_TRIM * len(losses))) if len(losses) >= 3 else 0
    middle = np.argsort(losses, kind="stable")[cut : len(losses) - cut]
    return float(losses[middle] @ samples[middle] / samples[middle].sum())


@quiet
def pooled(
    reports: Mapping[int, Evaluation], *, gradient: bool, metrics: Mapping[str, Metric] | None = None
) -> Measures:
    """Return the measures over the devices that reported, at least one.

    >>> report = Evaluation(3, 1.0, 1.0, 0, None, None), Evaluation(1, 5.0, 0.0, 0, None, None)
    >>> pooled(dict(enumerate(report)), gradient=False).train_loss
    2.0
    """
    known = [reports[device] for device in sorted(reports)]
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
        own=pool_metrics(known, metrics or {}),
        reports=len(known),
        trimmed_loss=trimmed_mean(np.array([one.train_loss for one in known]), sizes),
    )


def _evaluation_rows(reports: Mapping[int, Evaluation], devices: range) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
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
            }
        )
    return rows


def _share(parts: list[tuple[int, float | None]]) -> float | None:
    """Pool accuracies over all examples, as integer counts of correct predictions."""
    known = [(samples, accuracy) for samples, accuracy in parts if samples and accuracy is not None]
    right = sum(round(samples * accuracy) for samples, accuracy in known)
    return right / sum(samples for samples, _ in known) if known else None
