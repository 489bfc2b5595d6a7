"""What the paper claims about its experiments, each with the rule by which it is judged here.

Every judge is a pure function of the histories behind some curves. Differences are taken seed by seed, on the same
devices, stragglers and mini-batch orders, and are positive where the claim says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise, product

import numpy as np

from fedprox.history import History
from fedprox.paper.evidence import Evidence, Summary, average, compare, level, roughness, series, within
from fedprox.paper.experiments import Curve, arms
from fedprox.paper.headline import PAPER_POINTS, headline, mean_improvement
from fedprox.paper.intervals import interval
from fedprox.paper.protocol import DATASETS, FIVE, STRAGGLERS, SYNTHETIC
from fedprox.paper.results import Histories
from fedprox.paper.verdicts import FAILS, HOLDS, PARTLY, Judgement, judged, untested
from fedprox.stopping import Outcome

__all__ = ["CLAIMS", "Claim"]

Judge = Callable[[Histories], Judgement]

ACCURACY_MARGIN = 0.02  # "rather robust": within two points
LOSS_MARGIN = 0.1  # "similar", "competitive": within 0.1 of a loss that starts at 2.3
HEADLINE_MARGIN = 5.0  # the headline holds from 22 - 5 points on

_LOSS, _ACCURACY, _VARIANCE = "train_loss", "test_accuracy", "gradient_variance"
_NON_IID = SYNTHETIC[1:]
_WITH_STRAGGLERS = STRAGGLERS[1:]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, where it stands, how it is judged, in words and as a function."""

    name: str
    sentence: str
    where: str
    rule: str
    judge: Judge


def _label(dataset: str, share: float | None = None, more: str = "") -> str:
    parts = [DATASETS[dataset].title, "" if share is None else f"{share:.0%}", more]
    return ", ".join(filter(None, parts))


def _fedavg(dataset: str, share: float, epochs: int = 20) -> Curve:
    return arms(dataset, share, epochs)[0][1]


def _prox0(dataset: str, share: float, epochs: int = 20) -> Curve:
    return arms(dataset, share, epochs)[1][1]


def _best(dataset: str, share: float) -> Curve:
    return arms(dataset, share)[2][1]


def _dropping_hurts(results: Histories) -> Judgement:
    found = [
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
    return judged(found, "in mean loss")


def _partial_work(summary: Summary, epochs: int, unit: str) -> Judge:
    def judge(results: Histories) -> Judgement:
        return judged(
            [
                compare(
                    results,
                    _label(name, share),
                    _fedavg(name, share, epochs),
                    _prox0(name, share, epochs),
                    _LOSS,
                    summary,
                )
                for name, share in product(FIVE, _WITH_STRAGGLERS)
            ],
            unit,
        )

    return judge


def _proximal_term(summary: Summary, unit: str) -> Judge:
    def judge(results: Histories) -> Judgement:
        return judged(
            [
                compare(results, _label(name, share), _prox0(name, share), _best(name, share), _LOSS, summary)
                for name, share in product(FIVE, STRAGGLERS)
            ],
            unit,
        )

    return judge


def _proximal_accuracy(results: Histories) -> Judgement:
    found = [
        compare(results, _label(name, share), _best(name, share), _prox0(name, share), _ACCURACY, level)
        for name, share in product(FIVE, STRAGGLERS)
    ]
    return judged(found, "points of test accuracy", factor=100, form="+.1f")


def _divergent_converge(results: Histories) -> Judgement:
    """Look at the runs with mu = 0 that diverge, and at what the best mu makes of each."""
    divergent, saved, where = 0, 0, []
    for name, share in product(FIVE, STRAGGLERS):
        plain, proximal = results.histories(_prox0(name, share)), results.histories(_best(name, share))
        pairs = [(one, other) for one, other in zip(plain, proximal, strict=False) if _diverges(one)]
        divergent += len(pairs)
        saved += sum(not _diverges(other) for _, other in pairs)
        where += [_label(name, share)] if pairs else []
    if divergent == 0:
        return untested("no run with μ = 0 diverges in the sense of the paper, so that there is none to be saved")
    verdict = HOLDS if saved == divergent else PARTLY if saved else FAILS
    return Judgement(
        verdict, f"{saved} of {divergent} divergent runs", f"runs with μ = 0 diverge on {'; '.join(where)}"
    )


def _heterogeneity_hurts(results: Histories) -> Judgement:
    found = [
        compare(results, f"{_label(less)} to {_label(more)}", Curve(more), Curve(less), _LOSS, level)
        for less, more in pairwise(SYNTHETIC)
    ]
    return judged(found, "in final loss")


def _mu_slows_iid(results: Histories) -> Judgement:
    iid = Curve("synthetic-iid")
    return judged([compare(results, _label(iid.dataset), replace(iid, mu=1.0), iid, _LOSS, average)], "in mean loss")


def _mu_helps_non_iid(results: Histories) -> Judgement:
    found = [compare(results, _label(name), Curve(name), Curve(name, mu=1.0), _LOSS, level) for name in _NON_IID]
    return judged(found, "in final loss")


def _mu_lowers_variance(results: Histories) -> Judgement:
    names = (*SYNTHETIC, *FIVE[1:])
    found = [compare(results, _label(name), _prox0(name, 0.0), _best(name, 0.0), _VARIANCE, level) for name in names]
    relative = [_relative(each, results) for each in found if each is not None]
    return judged([*relative, *(each for each in found if each is None)], "of the initial gradient variance")


def _relative(evidence: Evidence, results: Histories) -> Evidence:
    """Return a difference of variances as a share of the initial variance, which differs much between data sets."""
    first = results.histories(_prox0(evidence.dataset, 0.0))[0]
    scale, found = float(first[0][_VARIANCE]), evidence.difference
    ends = [None if end is None else end / scale for end in (found.low, found.high)]
    return replace(
        evidence,
        difference=replace(found, mean=found.mean / scale, low=ends[0], high=ends[1], error=found.error / scale),
    )


def _variance_follows_loss(results: Histories) -> Judgement:
    """Take the rank correlation over the rounds of loss and gradient variance, in each run with mu = 0."""
    found: list[Evidence | None] = []
    for name in (*SYNTHETIC, *FIVE[1:]):
        histories = results.histories(_prox0(name, 0.0))
        if not histories:
            found.append(None)
            continue
        correlation = interval([_rank_correlation(history) for history in histories])
        low, high = (correlation.mean if end is None else end for end in (correlation.low, correlation.high))
        found.append(Evidence(_label(name), name, correlation, "yes" if low > 0 else "no" if high < 0 else "open"))
    return judged(found, "rank correlation", form=".2f")


def _headline(results: Histories) -> Judgement:
    improvements = headline(results)
    if len(improvements) < len(FIVE):
        return untested("not all five data sets were run")
    mean = mean_improvement(improvements)
    evidence = tuple(
        Evidence(_label(each.dataset), each.dataset, each.points, "yes" if (each.points.low or 0) > 0 else "open")
        for each in improvements
    )
    if mean.mean >= PAPER_POINTS - HEADLINE_MARGIN:
        verdict = HOLDS
    else:
        verdict = PARTLY if mean.low is not None and mean.low > 0 else FAILS
    return Judgement(verdict, f"{mean.text('+.1f')} points", f"the paper reports {PAPER_POINTS:.0f} points", evidence)


def _iid_is_robust(results: Histories) -> Judgement:
    found = [
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
    return judged(found, "points of test accuracy", factor=100, form="+.1f")


def _feddane_on_iid(results: Histories) -> Judgement:
    found = [
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
    return judged(found, "in final loss")


def _feddane_on_non_iid(results: Histories) -> Judgement:
    found = [
        compare(results, _label(name, more=f"μ = {mu:g}"), Curve(name, "feddane", mu), Curve(name, mu=mu), _LOSS, level)
        for name, mu in product(_NON_IID, (0.0, 1.0))
    ]
    return judged(found, "in final loss")


def _feddane_with_more_devices(results: Histories) -> Judgement:
    found = [
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
    return judged(found, "in roughness of the loss")


def _adaptive_competes(results: Histories) -> Judgement:
    """Compare with the better of mu = 0 and mu = 1; to be better than it is competitive too."""
    found: list[Evidence | None] = []
    for name in SYNTHETIC:
        fixed = [Curve(name), Curve(name, mu=1.0)]
        levels = [[level(series(history, _LOSS)) for history in results.histories(curve)] for curve in fixed]
        if not all(levels):
            found.append(None)
            continue
        better = min(zip(levels, fixed, strict=True), key=lambda pair: float(np.mean(pair[0])))[1]
        worse = within(results, _label(name), Curve(name, mu="adaptive"), better, _LOSS, level, LOSS_MARGIN)
        if worse is not None and (worse.difference.high or worse.difference.mean) <= LOSS_MARGIN:
            worse = replace(worse, says="yes")
        found.append(worse)
    return judged(found, "in final loss, beside the better of μ = 0 and μ = 1")


def _by_size(summary: Summary, unit: str) -> Judge:
    def judge(results: Histories) -> Judgement:
        found = [
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
        return judged(found, unit)

    return judge


def _mu_is_stable_under_both(results: Histories) -> Judgement:
    found = [
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
    return judged(found, "in roughness of the loss")


def _diverges(history: History) -> bool:
    outcome = Outcome()
    for row in history:
        outcome.see(row["round"], row[_LOSS])
    return outcome.diverged_round is not None


def _rank_correlation(history: History) -> float:
    loss, variance = (np.argsort(np.argsort(series(history, measure))) for measure in (_LOSS, _VARIANCE))
    return float(np.corrcoef(loss, variance)[0, 1])


CLAIMS: Mapping[str, Claim] = {
    claim.name: claim
    for claim in (
        Claim(
            "dropping-hurts",
            "On all the datasets, systems heterogeneity has negative effects on convergence, and larger heterogeneity "
            "results in worse convergence (FedAvg).",
            "Section 5.2, Figure 1",
            "The mean training loss of FedAvg over all rounds rises from 0% to 50% and from 50% to 90% stragglers.",
            _dropping_hurts,
        ),
        Claim(
            "partial-work-is-faster",
            "Compared with dropping the more constrained devices (FedAvg), incorporating variable amounts of work "
            "(FedProx, μ = 0) leads to faster convergence.",
            "Section 5.2, Figure 1",
            "With 50% and 90% stragglers the mean training loss over all rounds is lower for FedProx (μ = 0).",
            _partial_work(average, 20, "in mean loss"),
        ),
        Claim(
            "partial-work-is-more-stable",
            "Compared with dropping the more constrained devices (FedAvg), incorporating variable amounts of work "
            "(FedProx, μ = 0) leads to more stable convergence.",
            "Section 5.2, Figure 1",
            "With 50% and 90% stragglers the training loss is rougher for FedAvg than for FedProx (μ = 0).",
            _partial_work(roughness, 20, "in roughness of the loss"),
        ),
        Claim(
            "mu-improves-convergence",
            "Setting μ > 0 in FedProx can further improve convergence.",
            "Section 5.2, Figure 1",
            "The final training loss is lower with the paper's best μ than with μ = 0, at 0%, 50% and 90% stragglers.",
            _proximal_term(level, "in final loss"),
        ),
        Claim(
            "mu-increases-stability",
            "For all datasets, the appropriate μ can increase the stability for unstable methods.",
            "Section 5.3.2, Figure 1",
            "The training loss is rougher with μ = 0 than with the paper's best μ, at 0%, 50% and 90% stragglers.",
            _proximal_term(roughness, "in roughness of the loss"),
        ),
        Claim(
            "mu-makes-divergent-converge",
            "The appropriate μ can force divergent methods to converge.",
            "Section 5.3.2, Figure 1",
            "Of the runs with μ = 0 that diverge (f_t - f_(t-10) > 1 at some round), the same run with the paper's "
            "best μ does not: all of them, holds; some, holds partly.",
            _divergent_converge,
        ),
        Claim(
            "mu-increases-accuracy",
            "μ > 0 also increases the accuracy in most cases.",
            "Section 5.3.2, Figures 6 and 7",
            "The final test accuracy is higher with the paper's best μ than with μ = 0, at 0%, 50% and 90% stragglers.",
            _proximal_accuracy,
        ),
        Claim(
            "headline",
            "FedProx improves absolute testing accuracy relative to FedAvg by 22% on average in highly heterogeneous "
            "environments (90% stragglers).",
            "Section 5.3.2, Figure 7",
            f"The mean improvement over the five data sets is at least {PAPER_POINTS - HEADLINE_MARGIN:.0f} points: "
            "holds; smaller, but with an interval above zero: holds partly.",
            _headline,
        ),
        Claim(
            "heterogeneity-hurts",
            "As data become more heterogeneous, convergence becomes worse for FedProx with μ = 0 (i.e., FedAvg).",
            "Section 5.3.1, Figure 2",
            "The final training loss with μ = 0 rises from each synthetic data set to the next.",
            _heterogeneity_hurts,
        ),
        Claim(
            "mu-slows-iid",
            "[Setting μ > 0] may slow convergence for IID data.",
            "Section 5.3.1, Figure 2",
            "On Synthetic-IID the mean training loss over all rounds is higher with μ = 1 than with μ = 0.",
            _mu_slows_iid,
        ),
        Claim(
            "mu-helps-heterogeneous",
            "Setting μ > 0 is particularly useful in heterogeneous settings.",
            "Section 5.3.1, Figure 2",
            "On the three heterogeneous synthetic data sets the final training loss is lower with μ = 1 than with "
            "μ = 0.",
            _mu_helps_non_iid,
        ),
        Claim(
            "mu-lowers-dissimilarity",
            "Increasing μ leads to smaller dissimilarity among local functions F_k.",
            "Section 5.3.3, Figures 2 and 8",
            "Without stragglers the final gradient variance is lower with μ > 0 than with μ = 0.",
            _mu_lowers_variance,
        ),
        Claim(
            "dissimilarity-follows-loss",
            "The dissimilarity metric is consistent with the training loss.",
            "Section 5.3.3, Figures 2 and 8",
            "In runs with μ = 0 the rank correlation of loss and gradient variance over the rounds is positive.",
            _variance_follows_loss,
        ),
        Claim(
            "one-epoch",
            "Even in these settings [E = 1], allowing for partial work can improve convergence compared with FedAvg.",
            "Section 5.2, Figures 9 and 10",
            "At E = 1, with 50% and 90% stragglers, the mean training loss over all rounds is lower for FedProx "
            "(μ = 0).",
            _partial_work(average, 1, "in mean loss"),
        ),
        Claim(
            "iid-is-robust",
            "In this IID setting FedAvg is rather robust under device failure, and tolerating variable amounts of "
            "local work may not cause major improvement.",
            "Section 5.2, Figure 5",
            "On Synthetic-IID, with 10%, 50% and 90% stragglers, the final test accuracies of FedAvg and FedProx "
            f"(μ = 0) differ by no more than {100 * ACCURACY_MARGIN:.0f} points.",
            _iid_is_robust,
        ),
        Claim(
            "feddane-on-iid",
            "FedDANE performs similarly as FedProx on the IID data.",
            "Appendix B, Figure 4",
            f"On Synthetic-IID the final training losses differ by no more than {LOSS_MARGIN:g}, for μ = 0 and μ = 1.",
            _feddane_on_iid,
        ),
        Claim(
            "feddane-on-non-iid",
            "[FedDANE] suffers from poor convergence on the non-IID datasets.",
            "Appendix B, Figure 4",
            "On the three heterogeneous synthetic data sets the final training loss of FedDANE is higher than that of "
            "FedProx with the same μ, for μ = 0 and μ = 1.",
            _feddane_on_non_iid,
        ),
        Claim(
            "feddane-with-more-devices",
            "Although sampling more devices per round might help to some extent, FedDANE is still unstable and tends "
            "to diverge.",
            "Appendix B, Figure 4",
            "With 20 and 30 of 30 devices the training loss of FedDANE (μ = 1) is rougher than that of FedProx (μ = 1) "
            "with 10, on the three heterogeneous synthetic data sets.",
            _feddane_with_more_devices,
        ),
        Claim(
            "adaptive-mu-competes",
            "[Setting μ adaptively, from adversarial starts,] allows for competitive performance.",
            "Appendix C.3.3, Figures 3 and 11",
            f"The final training loss is at most {LOSS_MARGIN:g} above that of the better of μ = 0 and μ = 1.",
            _adaptive_competes,
        ),
        Claim(
            "sampling-by-size-is-better",
            "Sampling devices with a probability proportional to the number of local data points and then simply "
            "averaging local models performs slightly better than uniformly sampling devices.",
            "Appendix C.3.4, Figure 12",
            "The mean training loss over all rounds is lower when devices are sampled by size, for μ = 0 and μ = 1.",
            _by_size(average, "in mean loss"),
        ),
        Claim(
            "sampling-by-size-is-more-stable",
            "The sampling scheme proposed herein in fact results in more stable performance for both methods.",
            "Section 5.1, Figure 12",
            "The training loss is rougher when devices are sampled uniformly, for μ = 0 and μ = 1.",
            _by_size(roughness, "in roughness of the loss"),
        ),
        Claim(
            "mu-is-stable-under-both-schemes",
            "Under either sampling scheme, the settings with μ = 1 demonstrate more stable performance than settings "
            "with μ = 0.",
            "Appendix C.3.4, Figure 12",
            "The training loss is rougher with μ = 0 than with μ = 1, under both schemes.",
            _mu_is_stable_under_both,
        ),
    )
}
