"""The judges of the claims: pure functions from the histories behind some curves to a judgement.

Differences are taken seed by seed, on the same devices, stragglers and mini-batch orders, and are positive where the
claim says so. The sentences of the paper and the rules in words are in `fedprox.paper.claims`.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import numpy as np

from fedprox.paper.evidence import Evidence, Summary, at_most, average, compare, level, roughness, series, side, within
from fedprox.paper.experiments import Curve, arms
from fedprox.paper.headline import PAPER_POINTS, Improvement, headline, mean_improvement
from fedprox.paper.intervals import interval
from fedprox.paper.protocol import DATASETS, FIVE, STRAGGLERS, SYNTHETIC
from fedprox.paper.results import Histories
from fedprox.paper.verdicts import FAILS, HOLDS, PARTLY, Divergence, Found, Judge, Judgement, judge_by, untested
from fedprox.runs.history import History
from fedprox.runs.stopping import Outcome

__all__ = [
    "ACCURACY_MARGIN",
    "HEADLINE_MARGIN",
    "LOSS_MARGIN",
    "adaptive_competes",
    "by_size",
    "divergent_converge",
    "dropping_hurts",
    "feddane_on_iid",
    "feddane_on_non_iid",
    "feddane_with_more_devices",
    "heterogeneity_hurts",
    "iid_is_robust",
    "mean_accuracy_gain",
    "mu_helps_non_iid",
    "mu_is_stable_under_both",
    "mu_lowers_variance",
    "mu_slows_iid",
    "partial_work",
    "proximal_accuracy",
    "proximal_term",
    "variance_follows_loss",
]

ACCURACY_MARGIN = 0.02  # "rather robust": within two points
LOSS_MARGIN = 0.1  # "similar", "competitive": within 0.1 of a loss that starts at 2.3
HEADLINE_MARGIN = 5.0  # the headline holds from 22 - 5 points on

_LOSS, _ACCURACY, _VARIANCE = "train_loss", "test_accuracy", "gradient_variance"
_NON_IID = SYNTHETIC[1:]
_WITH_STRAGGLERS = STRAGGLERS[1:]


@judge_by("in mean loss")
def dropping_hurts(results: Histories) -> Found:
    """FedAvg gets worse from each share of stragglers to the next."""
    return [
        compare(
            results,
            f"{_label(name)}, {less:.0%} to {more:.0%}",
            _fedavg(name, more),
            _fedavg(name, less),
            _LOSS,
            average,
        )
        for name in FIVE
        for less, more in pairwise(STRAGGLERS)
    ]


def partial_work(summary: Summary, epochs: int, unit: str) -> Judge:
    """FedAvg, which drops stragglers, is above FedProx with mu = 0, which keeps what they have done."""

    def gather(results: Histories) -> Found:
        return [
            compare(
                results, _label(name, share), _fedavg(name, share, epochs), _prox0(name, share, epochs), _LOSS, summary
            )
            for name, share in product(FIVE, _WITH_STRAGGLERS)
        ]

    return judge_by(unit)(gather)


def proximal_term(summary: Summary, unit: str) -> Judge:
    """The loss with mu = 0 is above that with the best mu."""

    def gather(results: Histories) -> Found:
        return [
            compare(results, _label(name, share), _prox0(name, share), _best(name, share), _LOSS, summary)
            for name, share in product(FIVE, STRAGGLERS)
        ]

    return judge_by(unit)(gather)


@judge_by("points of test accuracy", factor=100, form="+.1f")
def proximal_accuracy(results: Histories) -> Found:
    """The best mu is more accurate than mu = 0."""
    return [
        compare(results, _label(name, share), _best(name, share), _prox0(name, share), _ACCURACY, level)
        for name, share in product(FIVE, STRAGGLERS)
    ]


def _divergent_runs(results: Histories) -> Found:
    """Count on each data set the runs with mu = 0 that diverge, and those of them that do not with the best mu."""
    found: list[Divergence | None] = []
    for name in FIVE:
        divergent, saved, where, is_run = 0, 0, [], False
        for share in STRAGGLERS:
            plain, proximal = results.histories(_prox0(name, share)), results.histories(_best(name, share))
            if not plain or not proximal:
                continue
            is_run = True
            pairs = [(one, other) for one, other in zip(plain, proximal, strict=True) if _diverges(one)]
            divergent += len(pairs)
            saved += sum(not _diverges(other) for _, other in pairs)
            where += [_label(name, share)] if pairs else []
        found.append(Divergence(name, divergent, saved, tuple(where)) if is_run else None)
    return found


def _all_are_saved(found: Found) -> Judgement:
    counts = [each for each in found if isinstance(each, Divergence)]
    divergent, saved = sum(each.divergent for each in counts), sum(each.saved for each in counts)
    if divergent == 0:
        return untested("no run with μ = 0 diverges in the sense of the paper, so that there is none to be saved")
    verdict = HOLDS if saved == divergent else PARTLY if saved else FAILS
    where = "; ".join(label for each in counts for label in each.where)
    return Judgement(verdict, f"{saved} of {divergent} divergent runs", f"runs with μ = 0 diverge on {where}")


divergent_converge = Judge(_divergent_runs, _all_are_saved)
"""Judge the runs with mu = 0 that diverge by the same runs with the best mu."""


@judge_by("in final loss")
def heterogeneity_hurts(results: Histories) -> Found:
    """With mu = 0 the loss rises from each synthetic data set to the next."""
    return [
        compare(results, f"{_label(less)} to {_label(more)}", Curve(more), Curve(less), _LOSS, level)
        for less, more in pairwise(SYNTHETIC)
    ]


@judge_by("in mean loss")
def mu_slows_iid(results: Histories) -> Found:
    """On IID data the loss falls more slowly with mu = 1."""
    iid = Curve("synthetic-iid")
    return [compare(results, _label(iid.dataset), replace(iid, mu=1.0), iid, _LOSS, average)]


@judge_by("in final loss")
def mu_helps_non_iid(results: Histories) -> Found:
    """On heterogeneous synthetic data the loss ends lower with mu = 1."""
    return [compare(results, _label(name), Curve(name), Curve(name, mu=1.0), _LOSS, level) for name in _NON_IID]


@judge_by("of the initial gradient variance")
def mu_lowers_variance(results: Histories) -> Found:
    """The gradient variance, as a share of the initial one, ends lower with mu > 0."""
    names = (*SYNTHETIC, *FIVE[1:])
    found = [compare(results, _label(name), _prox0(name, 0.0), _best(name, 0.0), _VARIANCE, level) for name in names]
    return [None if each is None else _relative(each, results) for each in found]


@judge_by("rank correlation", form=".2f")
def variance_follows_loss(results: Histories) -> Found:
    """Take the rank correlation over the rounds of loss and gradient variance, in each run with mu = 0."""
    found: list[Evidence | None] = []
    for name in (*SYNTHETIC, *FIVE[1:]):
        correlations = [_rank_correlation(history) for history in results.histories(_prox0(name, 0.0))]
        over_seeds = interval(correlations) if correlations else None
        found.append(None if over_seeds is None else Evidence(_label(name), name, over_seeds, side(over_seeds)))
    return found


def _is_about_the_papers(found: Found) -> Judgement:
    improvements = [each for each in found if isinstance(each, Improvement)]
    if len(improvements) < len(FIVE):
        return untested("not all five data sets were run")
    mean = mean_improvement(improvements)
    evidence = tuple(
        Evidence(_label(each.dataset), each.dataset, each.points, side(each.points)) for each in improvements
    )
    if mean.mean >= PAPER_POINTS - HEADLINE_MARGIN:
        verdict = HOLDS
    else:
        verdict = PARTLY if mean.low is not None and mean.low > 0 else FAILS
    return Judgement(verdict, f"{mean.text('+.1f')} points", f"the paper reports {PAPER_POINTS:.0f} points", evidence)


mean_accuracy_gain = Judge(headline, _is_about_the_papers)
"""The mean improvement under 90% stragglers is about the paper's."""


@judge_by("points of test accuracy", factor=100, form="+.1f")
def iid_is_robust(results: Histories) -> Found:
    """On IID data it makes little difference whether stragglers are dropped."""
    return [
        within(
            results,
            _label("synthetic-iid", share),
            _prox0("synthetic-iid", share),
            _fedavg("synthetic-iid", share),
            _ACCURACY,
            level,
            ACCURACY_MARGIN,
        )
        for share in (0.1, 0.5, 0.9)
    ]


@judge_by("in final loss")
def feddane_on_iid(results: Histories) -> Found:
    """On IID data FedDANE ends where FedProx does."""
    return [
        within(
            results,
            _label("synthetic-iid", more=f"μ = {mu:g}"),
            Curve("synthetic-iid", "feddane", mu),
            Curve("synthetic-iid", mu=mu),
            _LOSS,
            level,
            LOSS_MARGIN,
        )
        for mu in (0.0, 1.0)
    ]


@judge_by("in final loss")
def feddane_on_non_iid(results: Histories) -> Found:
    """On heterogeneous data FedDANE ends above FedProx with the same mu."""
    return [
        compare(results, _label(name, more=f"μ = {mu:g}"), Curve(name, "feddane", mu), Curve(name, mu=mu), _LOSS, level)
        for name, mu in product(_NON_IID, (0.0, 1.0))
    ]


@judge_by("in roughness of the loss")
def feddane_with_more_devices(results: Histories) -> Found:
    """FedDANE is rougher than FedProx also with more devices."""
    return [
        compare(
            results,
            _label(name, more=f"{count} devices"),
            Curve(name, "feddane", 1.0, per_round=count),
            Curve(name, mu=1.0),
            _LOSS,
            roughness,
        )
        for name, count in product(_NON_IID, (20, 30))
    ]


@judge_by("in final loss, beside the better of μ = 0 and μ = 1")
def adaptive_competes(results: Histories) -> Found:
    """Compare with the better of mu = 0 and mu = 1."""
    found: list[Evidence | None] = []
    for name in SYNTHETIC:
        fixed = [Curve(name), Curve(name, mu=1.0)]
        levels = [[level(series(history, _LOSS)) for history in results.histories(curve)] for curve in fixed]
        if not all(levels):
            found.append(None)
            continue
        better = min(zip(levels, fixed, strict=True), key=lambda pair: float(np.mean(pair[0])))[1]
        found.append(at_most(results, _label(name), Curve(name, mu="adaptive"), better, _LOSS, level, LOSS_MARGIN))
    return found


def by_size(summary: Summary, unit: str) -> Judge:
    """Sampling uniformly is above sampling by size."""

    def gather(results: Histories) -> Found:
        return [
            compare(
                results,
                _label(name, more=f"μ = {mu:g}"),
                Curve(name, mu=mu),
                Curve(name, mu=mu, sampling="proportional"),
                _LOSS,
                summary,
            )
            for name, mu in product(SYNTHETIC, (0.0, 1.0))
        ]

    return judge_by(unit)(gather)


@judge_by("in roughness of the loss")
def mu_is_stable_under_both(results: Histories) -> Found:
    """The loss is rougher with mu = 0 than with mu = 1, whatever the sampling."""
    return [
        compare(
            results,
            _label(name, more=scheme),
            Curve(name, sampling=scheme),
            Curve(name, mu=1.0, sampling=scheme),
            _LOSS,
            roughness,
        )
        for name, scheme in product(SYNTHETIC, ("uniform", "proportional"))
    ]


def _relative(evidence: Evidence, results: Histories) -> Evidence:
    """Return a difference of variances as a share of the initial variance, which differs much between data sets."""
    first = results.histories(_prox0(evidence.dataset, 0.0))[0]
    scale, found = float(first[0][_VARIANCE]), evidence.difference
    ends = [None if end is None else end / scale for end in (found.low, found.high)]
    return replace(
        evidence,
        difference=replace(found, mean=found.mean / scale, low=ends[0], high=ends[1], error=found.error / scale),
    )


def _diverges(history: History) -> bool:
    outcome = Outcome()
    for row in history:
        outcome.see(row["round"], row[_LOSS])
    return outcome.diverged_round is not None


def _rank_correlation(history: History) -> float:
    loss, variance = (np.argsort(np.argsort(series(history, measure))) for measure in (_LOSS, _VARIANCE))
    return float(np.corrcoef(loss, variance)[0, 1])


def _label(dataset: str, share: float | None = None, more: str = "") -> str:
    parts = [DATASETS[dataset].title, "" if share is None else f"{share:.0%}", more]
    return ", ".join(filter(None, parts))


def _fedavg(dataset: str, share: float, epochs: int = 20) -> Curve:
    return arms(dataset, share, epochs)[0][1]


def _prox0(dataset: str, share: float, epochs: int = 20) -> Curve:
    return arms(dataset, share, epochs)[1][1]


def _best(dataset: str, share: float) -> Curve:
    return arms(dataset, share)[2][1]
