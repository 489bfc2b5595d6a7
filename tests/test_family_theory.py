"""The guarantees of S-DANE, FedExProx and exact ADMM: quadratics whose minimisers and constants are known, and runs."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import fedprox
from fedprox import theory
from fedprox.cli import app


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


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("mu", [0.1, 1.0, 10.0])
def test_exact_admm_keeps_its_promise(seed, mu):
    rng = np.random.default_rng(seed)
    A, b, p = quadratics(rng)
    best = np.linalg.solve(np.einsum("k,kij->ij", p, A), np.einsum("k,kij,kj->i", p, A, b))
    at_best = np.einsum("kij,kj->ki", A, best - b)
    z, duals, distances = np.zeros(5), np.zeros((6, 5)), []
    for _ in range(40):
        found = np.array(
            [np.linalg.solve(h + mu * np.eye(5), h @ c + d + mu * z) for h, c, d in zip(A, b, duals, strict=True)]
        )
        duals = duals - mu * (found - z)
        z = p @ (found - duals / mu)
        distances.append(p @ np.einsum("ki,kij,kj->k", found - best, A, found - best) / 2)
        bound = theory.admm_gap(
            mu=mu, distance2=best @ best, gradients2=p @ np.sum(at_best**2, axis=1), rounds=len(distances)
        )
        assert np.mean(distances) <= bound + 1e-12


def least_squares(folder):
    rng = np.random.default_rng(0)
    x, device = rng.normal(size=(120, 3)), np.repeat(np.arange(4), 30)
    y = x @ np.array([1.0, -1.0, 0.5]) + 0.3 * device + rng.normal(size=120)
    np.savez(folder / "rows.npz", x=x.astype(np.float32), y=y.astype(np.float32), device=device)
    return {"name": "npz", "path": str(folder / "rows.npz")}


def asked(run, *options, code=0):
    """Return what `fedprox theory` prints."""
    answer = CliRunner().invoke(app, ["theory", str(run), *options])
    assert answer.exit_code == code, answer.output
    return answer.output


def theory_of(folder, method, **sections):
    """Return what `fedprox theory --json` says about a run with all devices and exact solutions."""
    settings = {
        "rounds": 3,
        "data": least_squares(folder),
        "model": {"name": "linear_regression"},
        "method": method,
        "solver": {"name": "closed_form"},
        "devices": {"per_round": 4},
    }
    fedprox.train({**settings, **sections}, out=folder / "run")
    said = json.loads(asked(folder / "run", "--json"))
    return said["kind"], [each["what"] for each in said["conditions"] if each["holds"] is False], said["guarantee"]


SDANE, ADMM = {"name": "sdane", "mu": 6.0}, {"name": "fedadmm", "mu": 2.0, "penalty_factor": 1.0}
EXPROX = {"name": "fedexprox", "mu": 1.0}


def test_runs_that_meet_the_conditions_get_their_bounds(tmp_path):
    for number, (method, kind, bound) in enumerate(
        [
            (SDANE, "certificate", "over rounds 1 to 3 is at most 1 ||w^0 - x*||^2"),
            (ADMM, "certificate", "at most 0.333333 ||w^0 - x*||^2 + 0.0833333 sum_k p_k ||grad F_k(x*)||^2"),
            (EXPROX, "certificate under an assumption", "||w^t - x*||^2 falls in every round"),
            ({**EXPROX, "extrapolation": 1.1}, "certificate under an assumption", "within 0.151515 ||w^0 - x*||^2"),
        ]
    ):
        (folder := tmp_path / str(number)).mkdir()
        found, failed, guarantee = theory_of(folder, method)
        assert (found, failed) == (kind, [])
        assert bound in guarantee


@pytest.mark.parametrize(
    ("method", "sections", "failed"),
    [
        (SDANE, {"devices": {"per_round": 3}}, "every device takes part in every round"),
        ({**SDANE, "mu": 0.01}, {}, "mu > delta"),
        ({**SDANE, "mu": "adaptive"}, {}, "`method.mu` is one number"),
        (SDANE, {"solver": {"name": "sgd"}}, "the accuracy of the devices is known"),
        ({**ADMM, "penalty_factor": 2.0}, {}, "the penalty is fixed"),
        (ADMM, {"solver": {"name": "sgd"}}, "devices solve exactly"),
        ({**EXPROX, "extrapolation": 1e6}, {}, "the extrapolation is at most"),
        (ADMM, {"merge": {"rule": "mean"}, "devices": {"per_round": 4, "failure": 0.3}}, "every device takes part"),
    ],
)
def test_runs_that_do_not_are_told_what_fails(method, sections, failed, tmp_path):
    kind, reasons, _ = theory_of(tmp_path, method, **sections)
    assert kind == "no certificate"
    assert any(reason.startswith(failed) for reason in reasons), reasons


@pytest.mark.parametrize(("rate", "kind"), [(0.1, "certificate"), (0.001, "no certificate")])
def test_recorded_gammas_stand_for_exact_solutions_of_sdane(rate, kind, tmp_path):
    solver = {"name": "sgd", "batch_size": 0, "learning_rate": rate, "epochs": 20}
    found, failed, _ = theory_of(tmp_path, SDANE, solver=solver, measure={"gamma": True})
    assert found == kind
    assert len(failed) == (kind != "certificate")
    assert all(reason.startswith("devices are accurate enough, by their gamma; not in") for reason in failed)


def test_the_command_says_it_in_sentences(tmp_path):
    theory_of(tmp_path, EXPROX)
    lines = asked(tmp_path / "run").splitlines()
    assert lines[0].endswith("run, fedexprox: certificate under an assumption")
    assert "assumed: one x* minimises every F_k (interpolation)" in lines
    assert lines[-1].startswith("guaranteed: ||w^t - x*||^2 falls")
    assert "`--resample` must be 0 for fedexprox" in asked(tmp_path / "run", "--resample", "50", code=2)
