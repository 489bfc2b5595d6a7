"""The guarantees of S-DANE and FedExProx, on quadratics whose minimisers and constants are known."""

import numpy as np
import pytest

from fedprox import theory


def quadratics(rng, devices=6, size=5, common=None):
    """Return convex quadratics F_k(x) = (x - b_k)' A_k (x - b_k) / 2 and masses."""
    roots = rng.normal(size=(devices, 3, size))  # of rank 3: convex, not strongly
    hessians = np.einsum("kij,kil->kjl", roots, roots)
    centres = rng.normal(size=(devices, size)) if common is None else np.tile(common, (devices, 1))
    masses = rng.random(devices)
    return hessians, centres, masses / masses.sum()


def norm2(x):
    return np.linalg.norm(x, 2)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("accuracy", [0.0, 0.5])
def test_sdane_decreases_as_promised_in_every_round(seed, accuracy):
    rng = np.random.default_rng(seed)
    A, b, p = quadratics(rng)
    mean = np.einsum("k,kij->ij", p, A)
    best = np.linalg.solve(mean, np.einsum("k,kij,kj->i", p, A, b))
    delta = max(norm2(each - mean) for each in A)
    mu = 1.001 * theory.sdane_smallest_mu(delta=delta, accuracy=accuracy)

    def f(x):
        return sum(q * (x - c) @ h @ (x - c) for q, h, c in zip(p, A, b, strict=True)) / 2

    v, gaps, first = np.zeros(5), [], np.zeros(5)
    for _ in range(20):
        gradients = np.einsum("kij,kj->ki", A, v - b)
        g = p @ gradients
        found, left = [], []
        for h, own in zip(A, gradients, strict=True):
            moved = -np.linalg.solve(h + mu * np.eye(5), g)  # of h_k: grad F_k(w) + g - own + mu (w - v) = 0
            error = rng.normal(size=5)
            error *= 0.3 * accuracy * mu * np.linalg.norm(moved) / norm2(h + mu * np.eye(5)) / np.linalg.norm(error)
            found.append(v + moved + error)
            left.append(own + h @ (moved + error) + g - own + mu * (moved + error))
        moved2 = sum(q * np.sum((w - v) ** 2) for q, w in zip(p, found, strict=True))
        residual2 = sum(q * np.sum(e**2) for q, e in zip(p, left, strict=True))
        assert theory.sdane_step_holds(mu=mu, delta=delta, residual2=residual2, moved2=moved2)
        at_solutions = sum(q * h @ (w - c) for q, h, w, c in zip(p, A, found, b, strict=True))
        centre, model = v - at_solutions / mu, sum(q * w for q, w in zip(p, found, strict=True))
        gap = f(model) - f(best)
        assert gap <= mu / 2 * (np.sum((v - best) ** 2) - np.sum((centre - best) ** 2)) + 1e-10
        gaps.append(gap)
        v = centre
    assert np.mean(gaps) <= theory.sdane_gap(mu=mu, distance2=np.sum((first - best) ** 2), rounds=20) + 1e-12


@pytest.mark.parametrize("seed", range(5))
def test_fedexprox_keeps_its_promises_under_interpolation(seed):
    rng = np.random.default_rng(seed)
    best = rng.normal(size=5)
    A, _, p = quadratics(rng, common=best)
    mu, L = 2.0, max(map(norm2, A))
    step = theory.fedexprox_largest_step(mu=mu, L=L)

    def moves(w):
        return np.array([np.linalg.solve(h + mu * np.eye(5), mu * w + h @ best) - w for h in A])

    def envelope(w):
        moved = moves(w)
        near = w + moved
        inner = np.einsum("ki,kij,kj->k", near - best, A, near - best) / 2
        return p @ (inner + mu / 2 * np.sum(moved**2, axis=1))

    w = auto = np.zeros(5)
    for rounds in range(1, 30):
        w = w + step * (p @ moves(w))
        bound = theory.fedexprox_gap(mu=mu, L=L, extrapolation=step, distance2=best @ best, rounds=rounds)
        assert envelope(w) <= bound + 1e-12
        moved = moves(auto)
        mean2 = p @ np.sum(moved**2, axis=1)
        chosen = mean2 / np.sum((p @ moved) ** 2)
        after = auto + chosen * (p @ moved)
        assert np.sum((after - best) ** 2) <= np.sum((auto - best) ** 2) - chosen * mean2 + 1e-10
        auto = after


def test_values_outside_their_ranges_are_refused():
    with pytest.raises(ValueError, match="mu must be a finite number > 0; got 0"):
        theory.sdane_gap(mu=0.0, distance2=1.0, rounds=1)
    with pytest.raises(ValueError, match=r"accuracy must be a number in \[0, 1\); got 1"):
        theory.sdane_smallest_mu(delta=1.0, accuracy=1.0)
    with pytest.raises(ValueError, match="delta must be a finite number >= 0; got -1"):
        theory.sdane_smallest_mu(delta=-1.0)
    with pytest.raises(ValueError, match="extrapolation must be at most 1 \\+ mu / L = 2; got 3"):
        theory.fedexprox_gap(mu=1.0, L=1.0, extrapolation=3.0, distance2=1.0, rounds=1)
