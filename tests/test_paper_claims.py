"""Every claim is shown to hold and to fail, on curves made by hand: as the paper sees the world, and its contrary."""

import math

import numpy as np
import pytest

from fedprox.paper.claims import CLAIMS
from fedprox.paper.evidence import Evidence, at_most, compare, level, roughness, series, side, within
from fedprox.paper.experiments import EXPERIMENTS, Curve
from fedprox.paper.headline import ending, headline, headline_lines, mean_improvement
from fedprox.paper.intervals import Interval, combined, interval
from fedprox.paper.protocol import SYNTHETIC
from fedprox.paper.verdicts import FAILS, HOLDS, NOT_TESTED, PARTLY, judged
from fedprox.runs.history import History

ROUNDS = 21


def history_of(losses, accuracies=None, variances=None):
    accuracies = [0.5] * len(losses) if accuracies is None else accuracies
    variances = losses if variances is None else variances
    return History(
        {"round": t, "train_loss": f, "test_accuracy": a, "gradient_variance": v}
        for t, (f, a, v) in enumerate(zip(losses, accuracies, variances, strict=True))
    )


class World:
    """Histories made up from what a world says of a curve: a level, a wobble around it, and whether it diverges.

    `sign` is 1 for the world of the paper and -1 for its contrary.
    """

    def __init__(self, sign, seeds=3, without=()):
        self.sign, self.seeds, self.without = sign, seeds, without

    def histories(self, curve):
        return [] if curve.dataset in self.without else [self.history(curve, seed) for seed in range(self.seeds)]

    def history(self, curve, seed):
        times = np.arange(ROUNDS)
        losses = self.level(curve) + 0.001 * seed * len(curve.method) + self.wobble(curve) * (-1.0) ** times
        if self.diverges(curve):
            losses[12:] += 1.5
        variances = 3 + self.sign * losses - self.sign * (curve.mu != 0)
        return history_of(losses, np.full(ROUNDS, 1 - self.level(curve) / 5), variances)

    def level(self, curve):
        is_iid = curve.dataset == "synthetic-iid"
        value = 2 + 0.2 * self.sign * (SYNTHETIC.index(curve.dataset) if curve.dataset in SYNTHETIC else 1)
        if curve.method == "fedavg":
            value += self.sign * curve.stragglers if not is_iid else 0.001 if self.sign > 0 else 0.5
        elif curve.method == "feddane":
            value += self.sign * 0.5 if not is_iid else 0.0 if self.sign > 0 else 0.5
        if curve.mu == "adaptive":
            value += 0.5 if self.sign < 0 else 0.02 if is_iid else -0.15
        elif curve.mu:
            value += self.sign * (0.15 if is_iid else -0.2)
        return value - self.sign * 0.03 * (curve.sampling == "proportional")

    def wobble(self, curve):
        rough = {"fedavg": 0.05, "feddane": 0.1}.get(curve.method, 0.0) - 0.03 * bool(curve.mu)
        return 0.2 + self.sign * (rough - 0.01 * (curve.sampling == "proportional"))

    def diverges(self, curve):
        is_shaky = curve == Curve("femnist", mu=curve.mu) and curve.method == "fedprox"
        return is_shaky and (curve.mu == 0.0 or self.sign < 0)


@pytest.mark.parametrize("name", CLAIMS)
def test_every_claim_holds_in_the_world_of_the_paper_and_fails_in_its_contrary(name):
    assert CLAIMS[name].judge(World(1)).verdict == HOLDS
    assert CLAIMS[name].judge(World(-1)).verdict == FAILS


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_that_was_not_run_is_not_tested(name):
    everywhere = {curve.dataset for each in EXPERIMENTS.values() for curve in each.curves}
    assert CLAIMS[name].judge(World(1, without=everywhere)).verdict == NOT_TESTED


def test_the_claims_use_only_curves_that_the_figures_run():
    """Every curve that a judge asks for belongs to a figure, or nobody would run it."""
    asked = set()

    class Asking(World):
        def histories(self, curve):
            asked.add(curve)
            return super().histories(curve)

    for claim in CLAIMS.values():
        claim.judge(Asking(1))
    assert asked <= {curve for each in EXPERIMENTS.values() for curve in each.curves}


def evidence(*answers):
    return [
        Evidence(str(number), "mnist", Interval(1.0, 0.0, 2.0, 0.1, 4), says) for number, says in enumerate(answers)
    ]


@pytest.mark.parametrize(
    ("answers", "verdict"),
    [
        (("yes", "yes"), HOLDS),
        (("yes", "open"), HOLDS),
        (("yes", "open", "open"), PARTLY),
        (("yes", "yes", "no"), PARTLY),
        (("open", "open"), FAILS),
        (("no", "open"), FAILS),
    ],
)
def test_the_rule_of_the_verdicts(answers, verdict):
    assert judged(evidence(*answers), "").verdict == verdict


def test_the_verdict_says_what_it_rests_on():
    judgement = judged([*evidence("yes", "no", "open"), None], "in loss")
    assert judgement.why == (
        "1 of 3 comparisons show it; 1 shows the opposite (1); 1 cannot be told apart with these seeds; 1 were not run"
    )
    assert judgement.number.endswith("in loss")


def test_one_seed_decides_nothing():
    judgement = CLAIMS["mu-slows-iid"].judge(World(1, seeds=1))
    assert (judgement.verdict, judgement.why) == (NOT_TESTED, "one seed allows no interval")
    assert judgement.number == "+0.149 in mean loss"  # 0.15, less 0.03 / 21 of wobble: an odd number of rounds


def test_intervals_are_those_of_students_t():
    found = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    reach = 2.776445 * math.sqrt(2.5 / 5)  # t with 4 degrees of freedom at 97.5%, from a table
    assert found.mean == 3
    assert (found.low, found.high) == pytest.approx((3 - reach, 3 + reach), rel=1e-6)
    assert interval([2.0]).low is None
    assert side(found) == "yes"
    assert side(found, 6.0) == "no"


def test_the_mean_of_means_has_the_error_of_independent_parts():
    one, other = interval([1.0, 2.0, 3.0]), interval([10.0, 12.0, 14.0])
    both = combined([one, other])
    assert both.mean == 7
    assert both.error == pytest.approx(math.sqrt(one.error**2 + other.error**2) / 2)
    squares = [(one.error / 2) ** 2, (other.error / 2) ** 2]
    assert both.freedom == pytest.approx(sum(squares) ** 2 / (squares[0] ** 2 / 2 + squares[1] ** 2 / 2))
    assert combined([one, interval([1.0])]).low is None


def test_summaries_by_hand():
    assert level(np.array([9.0] * 8 + [1.0, 3.0])) == 2
    assert roughness(np.array([0.0, 5.0, 1.0, 2.0, 0.0, 2.0])) == pytest.approx((1 + 2 + 2) / 3)
    cut = series(history_of([2.0, 1.0, 30.0, None]), "train_loss")
    assert cut.tolist() == [2.0, 1.0, 20.0, 20.0]


class Two:
    """Two curves whose levels differ by given amounts, one per seed."""

    def __init__(self, *differences):
        self.differences = differences

    def histories(self, curve):
        return [history_of([1.0 + (difference if curve.mu else 0)] * 5) for difference in self.differences]


@pytest.mark.parametrize(
    ("differences", "more", "near", "below"),
    [
        ((0.5, 0.5, 0.5), "yes", "no", "no"),
        ((-0.5, -0.5, -0.5), "no", "no", "yes"),
        ((0.05, 0.05, 0.05), "yes", "yes", "yes"),
        ((-0.5, 0.5, 0.1), "open", "open", "open"),
    ],
)
def test_comparisons_by_hand(differences, more, near, below):
    arguments = (Two(*differences), "x", Curve("mnist", mu=1.0), Curve("mnist"), "train_loss", level)
    assert compare(*arguments).says == more
    assert within(*arguments, 0.1).says == near
    assert at_most(*arguments, 0.1).says == below


def test_where_a_run_ends_in_the_sense_of_the_paper():
    falling = [2.0 - 0.1 * t for t in range(15)]
    assert ending(history_of(falling)).reason == "last round"
    still = [*falling[:5], falling[4] + 5e-5, *falling[5:]]
    assert (ending(history_of(still)).round, ending(history_of(still)).reason) == (5, "converged")
    rising = [1.0 + 0.11 * t for t in range(15)]
    assert (ending(history_of(rising)).round, ending(history_of(rising)).reason) == (10, "diverged")
    accuracies = np.linspace(0, 1, 15)
    assert ending(history_of(rising, accuracies)).accuracy == pytest.approx(accuracies[10])


def test_the_headline_is_the_mean_over_the_data_sets():
    world = World(1)
    found = headline(world)
    assert [each.dataset for each in found] == ["synthetic-1-1", "mnist", "femnist", "shakespeare", "sent140"]
    assert found[1].points.mean == pytest.approx(100 * (0.9 + 0.2) / 5)  # levels 0.9 above and 0.2 below, over 5
    assert mean_improvement(found).mean == pytest.approx(np.mean([each.points.mean for each in found]))
    assert headline_lines(found)[-1].endswith("the paper reports 22")
    assert headline(World(1, without={"mnist", "femnist", "shakespeare", "sent140"}))[0].dataset == "synthetic-1-1"
