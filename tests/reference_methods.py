"""Every method once more, in plain NumPy and double precision: one loop over any model, nothing shared with src.

Who takes part and with what budget is read from the records of a run; everything else is done again from the papers.
"""

from collections import defaultdict
from typing import NamedTuple

import numpy as np

DROPS_STRAGGLERS = ("fedavg", "fedavgm", "fedadam", "fedyogi", "fedexp", "qffl")


def softmax_gradient(w, x, y):
    """Gradient of the mean loss at w: (classes, features + 1), the bias in the last column."""
    x = np.column_stack([x.reshape(len(x), -1), np.ones(len(x))]).astype(np.float64)
    scores = x @ w.T
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    residuals = powers / powers.sum(axis=1, keepdims=True)
    residuals[np.arange(len(y)), y] -= 1
    return residuals.T @ x / len(y)


def softmax_loss(w, x, y):
    """Mean loss at w."""
    scores = np.column_stack([x.reshape(len(x), -1), np.ones(len(x))]).astype(np.float64) @ w.T
    return np.mean(np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(y)), y])


def batches(samples, batch_size, steps, seed, round, device):
    """Rows of each step; an epoch goes by the upper halves of fresh Philox words for (seed, round, device)."""
    words = np.random.Philox(key=np.array([seed, 4], np.uint64), counter=np.array([0, 0, round, device], np.uint64))
    done = 0
    while done < steps:
        order = np.argsort(words.random_raw(samples) >> np.uint64(32), kind="stable")
        for begin in range(0, samples, batch_size):
            if done < steps:
                yield order[begin : begin + batch_size]
                done += 1


def steps_of_round(probability, seed, round):
    """A geometric number by inversion of one Philox word for (seed, round)."""
    bits = np.random.Philox(key=np.array([seed, 12], np.uint64), counter=np.array([0, 0, round, 0], np.uint64))
    uniform = (int(bits.random_raw()) >> 11) / 2**53
    return 1 if probability == 1 else 1 + int(np.floor(np.log(1 - uniform) / np.log(1 - probability)))


class Problem(NamedTuple):
    """A model: w^0 as one array, the mean loss at an array, and its gradient."""

    start: np.ndarray
    loss: object
    gradient: object

    @classmethod
    def softmax(cls, population):
        """Softmax regression from zeros, (classes, features + 1)."""
        start = np.zeros((population.classes, int(np.prod(population.shape)) + 1))
        return cls(start, softmax_loss, softmax_gradient)


def final_models(
    method,
    population,
    records,
    *,
    rate,
    batch_size,
    seed,
    problem=None,
    proportional=False,
    mu=0.0,
    personal=None,
    **settings,
):
    """Return the models after each recorded round, each an array as w^0; fill `personal` by device."""
    w, loss_at, gradient_at = Problem.softmax(population) if problem is None else problem
    personal = {} if personal is None else personal
    sizes = np.diff(population.train.offsets)
    masses = sizes / sizes.sum()
    zero = np.zeros_like(w)
    remembered = defaultdict(lambda: zero)  # control variates or duals
    server = {"c": zero, "h": zero, "v": zero, "m": zero, "second": np.full_like(w, settings.get("tau", 0.0) ** 2)}
    models, reached_by, duals = [], {}, {}
    server |= {"centre": w, "A": zero, "B": 0.0, "mass": 0.0}
    for record in records:
        kept = [
            (device, budget, draws)
            for device, budget, draws, straggler, failed in zip(
                record["device"],
                record["budget"],
                record["draws"],
                record["straggler"],
                record.get("failed", [False] * len(record["device"])),
                strict=True,
            )
            if not failed and not (straggler and method in DROPS_STRAGGLERS)
        ]
        if kept:
            shares = np.array([draws if proportional else sizes[device] for device, _, draws in kept], float)
            weights = shares / shares.sum()
            base = server["centre"] if method == "sdane" else w  # the anchor, and where devices start
            g = gradient_of_round(gradient_at, base, population, record, kept, weights, settings)
            solutions = []
            for device, budget, _ in kept:
                x, y = population.train.of(device)
                linear, pull, steps = zero, mu, budget
                if method in ("feddane", "sdane"):
                    linear = g - gradient_at(base, x, y)
                if method == "scaffold":
                    linear = server["c"] - remembered[device]
                if method == "feddyn":
                    linear, pull = -remembered[device], settings["alpha"]
                if method == "pfedme":
                    pull = settings["personal_mu"]
                if method == "scaffnew":
                    probability = settings["probability"]
                    last, reached = reached_by.get(device, (0, w))
                    if record["round"] == last + 1:
                        remembered[device] = remembered[device] + probability / rate * (w - reached)
                    linear = -remembered[device]
                    steps = min(budget, steps_of_round(probability, seed, record["round"]))
                order = list(batches(len(y), batch_size, steps, seed, record["round"], device))

                def descend(local, pull, linear, gamma=0.0, x=x, y=y, order=order, w=base):
                    velocity, per_epoch = zero, -(-len(y) // batch_size)
                    at_start = np.linalg.norm(gradient_at(local, x, y) + linear)
                    for taken, rows in enumerate(order):
                        if gamma and taken and taken % per_epoch == 0:  # the device's own stopping test
                            gradient = gradient_at(local, x, y) + linear + pull * (local - w)
                            if np.linalg.norm(gradient) <= gamma * at_start:
                                break
                        step = gradient_at(local, x[rows], y[rows]) + linear + pull * (local - w)
                        velocity = settings.get("solver_momentum", 0.0) * velocity + step
                        local = local - rate * velocity
                    return local

                gamma = 0.0
                if method == "fedadmm":
                    known = duals.get(device) or {"u": w, "dual": zero, "used": 0.0, "beta": mu}
                    linear, pull = -known["dual"], known["beta"]
                    gamma = 0.999 * 2**0.5 / (2**0.5 + (pull / settings["convexity"]) ** 0.5)
                solutions.append(descend(base, pull, linear, gamma))
                if method == "fedadmm":
                    duals[device] = admm_device(known, solutions[-1], w, masses[device], server, settings)
                reached_by[device] = record["round"], solutions[-1]
                if method == "ditto":
                    personal[device] = descend(personal.get(device, w), settings["personal_mu"], linear)
                if method == "pfedme":
                    personal[device] = solutions[-1]
            if method == "sdane":
                for p, local, (device, _, _) in zip(weights, solutions, kept, strict=True):
                    end = gradient_at(local, *population.train.of(device))
                    server["centre"] = server["centre"] - p * end / mu
            losses = [loss_at(w, *population.train.of(device)) for device, _, _ in kept]
            w = merge(method, w, kept, weights, masses, solutions, server, remembered, rate, mu, settings, losses)
        models.append(w)
    return models


def admm_device(known, u, w, mass, server, settings):
    """What a device of FedADMM remembers; its new share of the server's sums takes the place of the old one."""
    beta = known["beta"]
    dual = known["dual"] - beta * (u - w)
    server["A"] = server["A"] + mass * (beta * u - dual - (known["used"] * known["u"] - known["dual"]))
    server["B"] += mass * (beta - known["used"])
    server["mass"] += mass * (known["used"] == 0)
    r, s = beta * np.linalg.norm(u - known["u"]), np.linalg.norm(u - w)
    factor, balance = settings["penalty_factor"], settings["balance"]
    new = beta * factor if balance * r < s else beta / factor if balance * s < r else beta
    return {"u": u, "dual": dual, "used": beta, "beta": new}


def gradient_of_round(gradient_at, w, population, record, kept, weights, settings):
    if settings.get("second_draw"):
        pairs = zip(record["second_draw"]["device"], record["second_draw"]["weight"], strict=True)
    else:
        pairs = zip([device for device, _, _ in kept], weights, strict=True)
    return sum(weight * gradient_at(w, *population.train.of(device)) for device, weight in pairs)


def gradient_count(steps, rate, mu, settings):
    """How often a gradient counts in a move, summed over the steps."""
    coefficients, v = np.zeros(steps), np.zeros(steps)  # of each gradient in the move so far
    for s in range(steps):
        v = settings.get("solver_momentum", 0.0) * v - rate * mu * coefficients
        v[s] += 1
        coefficients = coefficients + v
    return coefficients.sum()


def merge(method, w, kept, weights, masses, solutions, server, remembered, rate, mu, settings, losses):
    average = sum(weight * local for weight, local in zip(weights, solutions, strict=True))
    if method in ("fedavg", "fedprox", "feddane", "ditto", "scaffnew", "sdane"):
        return average
    if method == "qffl":
        q, moves = settings["q"], [w - local for local in solutions]
        bounds = [f**q + q * f ** (q - 1) * np.sum(move**2) / rate for f, move in zip(losses, moves, strict=True)]
        return w - sum(p * f**q * move for p, f, move in zip(weights, losses, moves, strict=True)) / (weights @ bounds)
    if method == "agnostic":
        scores = np.array([remembered[device].max() for device, _, _ in kept])  # one number on each device
        shares = weights * np.exp(scores)
        if "level" in server:
            for (device, _, _), score, loss in zip(kept, scores, losses, strict=True):
                remembered[device] = np.array(score + settings["mixture_step"] * (loss - server["level"]))
        server["level"] = weights @ losses
        return sum(share * local for share, local in zip(shares / shares.sum(), solutions, strict=True))
    if method == "scaffold":
        old = server["c"]
        for (device, steps, _), local in zip(kept, solutions, strict=True):
            new = remembered[device] - old + (w - local) / (gradient_count(steps, rate, mu, settings) * rate)
            server["c"] = server["c"] + masses[device] * (new - remembered[device])
            remembered[device] = new
        return average
    if method == "fednova":
        counts = [gradient_count(steps, rate, mu, settings) for _, steps, _ in kept]
        mean_count = weights @ np.array(counts)
        directions = [(w - local) / (rate * count) for local, count in zip(solutions, counts, strict=True)]
        return w - mean_count * rate * sum(p * d for p, d in zip(weights, directions, strict=True))
    if method == "feddyn":
        alpha = settings["alpha"]
        for (device, _, _), local in zip(kept, solutions, strict=True):
            remembered[device] = remembered[device] - alpha * (local - w)
            server["h"] = server["h"] - alpha * masses[device] * (local - w)
        return average - server["h"] / alpha
    if method == "fedadmm":
        return w + server["mass"] * (server["A"] / server["B"] - w)
    move = average - w
    if method in ("fedexp", "fedexprox"):
        spread = sum(p * np.sum((local - w) ** 2) for p, local in zip(weights, solutions, strict=True))
        if method == "fedexp":
            return w + max(1, spread / (2 * (np.sum(move**2) + settings["epsilon"]))) * move
        return w + spread / np.sum(move**2) * move
    if method == "pfedme":
        return w + settings["server_learning_rate"] * move
    if method == "fedavgm":
        server["v"] = settings["momentum"] * server["v"] + move
        return w + settings["server_learning_rate"] * server["v"]
    server["m"] = settings["beta1"] * server["m"] + (1 - settings["beta1"]) * move
    second, share = server["second"], 1 - settings["beta2"]
    if method == "fedadam":
        server["second"] = settings["beta2"] * second + share * move**2
    else:
        server["second"] = second - share * move**2 * np.sign(second - move**2)
    return w + settings["server_learning_rate"] * server["m"] / (np.sqrt(server["second"]) + settings["tau"])
