"""The formulas: numbers worked by hand, limits, monotonicity, the inverse questions, and what is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedprox import theory

GAMMA = st.floats(0, 0.9)
B = st.floats(1, 5)
K = st.integers(1, 2000)
L = st.floats(0.01, 100)
EXTRA = st.floats(0.1, 1000)  # mu - L_minus
L_MINUS = st.floats(0, 10)


def by_the_paper(mu, gamma, B, K, L, L_minus=0.0):
    """Theorem 4, copied term by term in the paper's order."""
    bar = mu - L_minus
    return (
        1 / mu
        - gamma * B / mu
        - B * (1 + gamma) * math.sqrt(2) / (bar * math.sqrt(K))
        - L * B * (1 + gamma) / (bar * mu)
        - L * (1 + gamma) ** 2 * B**2 / (2 * bar**2)
        - L * B**2 * (1 + gamma) ** 2 / (bar**2 * K) * (2 * math.sqrt(2 * K) + 2)
    )


def test_theory_is_an_attribute_of_the_package():
    import fedprox

    assert fedprox.theory.rho is theory.rho


def test_rho_by_hand():
    # 1/8 - 1/16 - 1/64 - 1/128 - 10/512
    assert theory.rho(mu=8, gamma=0, B=1, K=8, L=1) == pytest.approx(10 / 512)
    # mu_bar = 4: (1 - 1/2)/6 - 3/(2*4) * sqrt(2/8) - 2*1.5/(24) - 2*2.25/32 - 2*2.25*10/(16*8)
    by_hand = 0.5 / 6 - 1.5 / 8 - 3 / 24 - 4.5 / 32 - 45 / 128
    assert theory.rho(mu=6, gamma=0.5, B=1, K=8, L=2, L_minus=2) == pytest.approx(by_hand)


@given(EXTRA, GAMMA, B, K, L, L_MINUS)
def test_rho_is_the_papers_formula(extra, gamma, b, k, smooth, minus):
    mu = extra + minus
    value = theory.rho(mu=mu, gamma=gamma, B=b, K=k, L=smooth, L_minus=minus)
    largest = (1 + smooth) * b * b * 30 / (mu - minus) ** 2 + 10 * b / (mu - minus)
    assert value == pytest.approx(by_the_paper(mu, gamma, b, k, smooth, minus), abs=1e-12 * largest)


@given(EXTRA, GAMMA, B, K, L, L_MINUS, st.floats(1.01, 2))
def test_rho_falls_with_gamma_b_and_l_and_grows_with_k(extra, gamma, b, k, smooth, minus, more):
    constants = {"mu": extra + minus, "gamma": gamma, "B": b, "K": k, "L": smooth, "L_minus": minus}
    value = theory.rho(**constants)
    assert theory.rho(**constants | {"gamma": min(1.0, gamma + 0.1 * (more - 1))}) < value
    assert theory.rho(**constants | {"B": b * more}) < value
    assert theory.rho(**constants | {"L": smooth * more}) < value
    assert theory.rho(**constants | {"K": k + 1}) > value


def test_variable_gamma_takes_the_largest():
    constants = {"mu": 8.0, "B": 1.1, "K": 50, "L": 1.0}
    assert theory.rho_variable(gammas=[0.1, 0.3, 0.0], **constants) == theory.rho(gamma=0.3, **constants)
    for gammas, said in (([], "at least one"), ([0.1, -0.1], "got -0.1"), ([math.nan], "nan"), ([0.2, 1.5], "got 1.5")):
        with pytest.raises(ValueError, match=said):
            theory.rho_variable(gammas=gammas, **constants)


def test_bounded_variance_by_hand():
    assert theory.dissimilarity_bound(sigma2=3, epsilon=1) == 2
    # B = 2: 1/16 - 2 sqrt(2)/(16 sqrt(32)) - 2/256 - 4/512 - 4*18/(256*32)
    by_hand = 1 / 16 - 2 / 16 / 4 - 2 / 256 - 4 / 512 - 72 / (256 * 32)
    value = theory.rho_bounded_variance(mu=16, gamma=0, K=32, L=1, sigma2=3, epsilon=1)
    assert value == pytest.approx(by_hand)


@given(GAMMA, K, st.floats(0, 10), st.floats(0.1, 10))
def test_bounded_variance_is_the_appendix_formula(gamma, k, sigma2, epsilon):
    mu, smooth, minus = 20.0, 1.5, 0.5
    bar, root = mu - minus, math.sqrt(1 + sigma2 / epsilon)
    linear = gamma / mu + (1 + gamma) * math.sqrt(2) / (bar * math.sqrt(k)) + smooth * (1 + gamma) / (bar * mu)
    square = smooth * (1 + gamma) ** 2 / (2 * bar**2)
    square += smooth * (1 + gamma) ** 2 / (bar**2 * k) * (2 * math.sqrt(2 * k) + 2)
    value = theory.rho_bounded_variance(
        mu=mu, gamma=gamma, K=k, L=smooth, sigma2=sigma2, epsilon=epsilon, L_minus=minus
    )
    assert value == pytest.approx(1 / mu - linear * root - square * root**2, abs=1e-10)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mu": 0.5, "L_minus": 0.5}, "mu must be a finite number > L_minus = 0.5; got 0.5"),
        ({"mu": 0.0}, "mu must be"),
        ({"mu": math.inf}, "mu must be"),
        ({"gamma": -0.1}, r"gamma must be a finite number in \[0, 1\]; got -0.1"),
        ({"gamma": 1.1}, "gamma must be"),
        ({"B": 0.9}, "B must be a finite number >= 1; got 0.9"),
        ({"B": math.inf}, "B must be"),
        ({"K": 0}, "K must be a finite number >= 1; got 0"),
        ({"L": 0.0}, "L must be a finite number > 0; got 0.0"),
        ({"L_minus": -1.0}, "L_minus must be a finite number >= 0; got -1.0"),
        *(({name: math.nan}, f"{name} must be") for name in ("mu", "gamma", "B", "K", "L", "L_minus")),
    ],
)
def test_outside_the_domain(change, said):
    constants = {"mu": 1.0, "gamma": 0.0, "B": 1.0, "K": 10, "L": 1.0, "L_minus": 0.0} | change
    with pytest.raises(ValueError, match=said):
        theory.rho(**constants)


@pytest.mark.parametrize("change", [{"sigma2": -1.0}, {"epsilon": 0.0}, {"sigma2": math.nan}, {"epsilon": math.inf}])
def test_bounded_variance_outside_the_domain(change):
    constants = {"mu": 1.0, "gamma": 0.0, "K": 10, "L": 1.0, "sigma2": 1.0, "epsilon": 1.0} | change
    with pytest.raises(ValueError, match=next(iter(change))):
        theory.rho_bounded_variance(**constants)


def test_conditions_by_hand():
    dull, wide, sharp = theory.conditions(gamma=0.2, B=2.0, K=16)
    assert (dull.value, dull.holds) == (0.4, True)
    assert (wide.value, wide.limit, wide.holds) == (2.0, 4.0, True)
    assert sharp.value == pytest.approx(0.4 + math.sqrt(2) * 2 * 1.2 / 4)
    assert not sharp.holds
    assert theory.failing(gamma=0.2, B=2.0, K=16) == sharp
    assert theory.failing(gamma=0.0, B=1.0, K=100) is None


@given(GAMMA, B, K, L, L_MINUS)
def test_the_sharp_condition_is_exact(gamma, b, k, smooth, minus):
    """Some mu gives rho > 0 exactly when the condition holds."""
    margin = theory.margin(gamma=gamma, B=b, K=k)
    assume(abs(margin) > 1e-6)
    constants = {"gamma": gamma, "B": b, "K": k, "L": smooth, "L_minus": minus}
    found = any(theory.rho(mu=minus + 2.0**power, **constants) > 0 for power in range(-10, 60))
    assert found == (margin > 0)
    if margin > 0:
        assert gamma * b < 1  # the sharp condition contains the two of the paper
        assert b < math.sqrt(k)


@given(st.floats(0, 0.3), st.floats(1, 2), st.integers(20, 2000), L, L_MINUS)
def test_smallest_and_best_mu(gamma, b, k, smooth, minus):
    assume(theory.margin(gamma=gamma, B=b, K=k) > 1e-3)
    constants = {"gamma": gamma, "B": b, "K": k, "L": smooth, "L_minus": minus}

    def rho(mu):
        return theory.rho(mu=mu, **constants)

    smallest, best = theory.smallest_mu(**constants).value, theory.best_mu(**constants).value
    gap = smallest - minus
    assert rho(smallest + 1e-3 * gap) > 0
    assert rho(smallest - 1e-3 * gap) < 0
    assert rho(best) > 0
    for factor in (0.9, 0.99, 1.01, 1.1):
        assert rho(minus + factor * (best - minus)) < rho(best)


def test_inverse_questions_by_hand():
    known = {"gamma": 0.0, "B": 1.0, "K": 8, "L": 1.0}
    assert theory.smallest_mu(**known).value == pytest.approx(5.5)  # E = 1 + 1.75, A = 1/2
    assert theory.best_mu(**known).value == pytest.approx(11)
    assert theory.rho(mu=11, **known) == pytest.approx(0.25 / (4 * 2.75))  # A^2 / (4 E)
    # L_minus = 1: A b^2 - E b - F with E = 1/2 + 2.75, F = 1.75
    root = (3.25 + math.sqrt(3.25**2 + 4 * 0.5 * 1.75)) / (2 * 0.5)
    assert theory.smallest_mu(**known, L_minus=1.0).value == pytest.approx(root + 1)
    assert theory.largest_gamma(B=1, K=8, L=1).value == pytest.approx(1 / 3)
    assert theory.smallest_k(gamma=0, B=2, L=1).value == 9  # K > 2 B^2 = 8


@given(st.floats(1, 1.5), st.integers(30, 2000), st.floats(0.01, 10), st.floats(0, 2), st.floats(1.01, 20))
def test_largest_gamma_with_mu(b, k, smooth, minus, factor):
    mu = theory.smallest_mu(gamma=0.0, B=b, K=k, L=smooth, L_minus=minus).value * factor
    gamma = theory.largest_gamma(B=b, K=k, L=smooth, L_minus=minus, mu=mu).value
    constants = {"mu": mu, "B": b, "K": k, "L": smooth, "L_minus": minus}
    assert 0 < gamma < 1
    assert theory.rho(gamma=0.999 * gamma, **constants) > 0
    assert theory.rho(gamma=min(1.0, 1.001 * gamma), **constants) < 0


@given(st.floats(0, 0.3), st.floats(1, 2), st.floats(0.01, 10), st.floats(0, 2), st.floats(10, 1000))
def test_smallest_k_with_mu(gamma, b, smooth, minus, factor):
    mu = minus + factor * (smooth + minus)
    answer = theory.smallest_k(gamma=gamma, B=b, L=smooth, L_minus=minus, mu=mu)
    constants = {"mu": mu, "gamma": gamma, "B": b, "L": smooth, "L_minus": minus}
    if answer.value is None:
        assert theory.rho(K=10**12, **constants) < 1e-4 / mu
    else:
        assert theory.rho(K=answer.value, **constants) > 0
        assert answer.value == 1 or theory.rho(K=answer.value - 1, **constants) <= 0


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda: theory.smallest_mu(gamma=0.6, B=2.0, K=100, L=1.0), "gamma*B < 1 fails: 1.2 against 1"),
        (lambda: theory.best_mu(gamma=0.0, B=4.0, K=9, L=1.0), "B < sqrt(K) fails: 4 against 3"),
        (lambda: theory.best_mu(gamma=0.0, B=2.0, K=5, L=1.0), "sqrt(2)*B*(1 + gamma)/sqrt(K) < 1 fails"),
        (lambda: theory.largest_gamma(B=2.0, K=4, L=1.0), "no gamma gives rho > 0, whatever mu: B < sqrt(K) fails"),
        (lambda: theory.largest_gamma(B=1.0, K=8, L=1.0, mu=1.0), "mu must be above 5.5 even for gamma = 0; got 1"),
        (lambda: theory.smallest_k(gamma=1.0, B=1.0, L=1.0), "gamma*B < 1 fails"),
        (lambda: theory.smallest_k(gamma=0.0, B=1.0, L=1.0, mu=0.5), "mu is too small even for K without limit"),
    ],
)
def test_where_there_is_no_answer_the_condition_is_named(answer, said):
    found = answer()
    assert found.value is None
    assert said in found.because


def test_the_convex_corollary_is_the_papers_approximation():
    choice = theory.convex_choice(B=3.0, L=2.0, K=100)
    assert choice.mu == 6 * 2 * 9
    assert choice.rho == pytest.approx(1 / (24 * 2 * 9))
    assert choice.in_range
    assert not theory.convex_choice(B=3.0, L=2.0, K=35).in_range
    exact = theory.rho(mu=choice.mu, gamma=0, B=3.0, K=36, L=2.0)
    assert exact < choice.rho  # Theorem 4 at the end of the range says less than the approximation


def test_rounds_and_complexity_by_hand():
    assert theory.rounds_to(epsilon=0.1, rho=0.05, delta=2.0) == 400
    assert theory.rounds_to(epsilon=0.3, rho=1.0, delta=1.0) == 4
    assert theory.rounds_to(epsilon=1.0, rho=1.0, delta=0.0) == 0
    assert theory.iteration_complexity(L=2.0, delta=3.0, sigma2=0.5, epsilon=0.1) == pytest.approx(60 + 300)
    # Corollary 7 with B^2 = 1 + sigma2 / epsilon leads to 24 times the expression of Remark 8
    b = theory.dissimilarity_bound(sigma2=0.5, epsilon=0.1)
    rounds = theory.rounds_to(epsilon=0.1, rho=theory.convex_choice(B=b, L=2.0, K=100).rho, delta=3.0)
    assert rounds == 24 * 360


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: theory.rounds_to(epsilon=0.0, rho=1.0, delta=1.0), "epsilon"),
        (lambda: theory.rounds_to(epsilon=0.1, rho=-1.0, delta=1.0), "rho"),
        (lambda: theory.rounds_to(epsilon=0.1, rho=1.0, delta=math.nan), "delta"),
        (lambda: theory.iteration_complexity(L=1.0, delta=1.0, sigma2=-1.0, epsilon=0.1), "sigma2"),
        (lambda: theory.iteration_complexity(L=1.0, delta=1.0, sigma2=1.0, epsilon=0.0), "epsilon"),
        (lambda: theory.convex_choice(B=0.5, L=1.0, K=10), "B must be"),
    ],
)
def test_rates_outside_their_domain(call, said):
    with pytest.raises(ValueError, match=said):
        call()
