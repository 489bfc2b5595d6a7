"""FedProx for softmax regression in plain NumPy and double precision, written from the paper alone.

Shares no code with the package: it gets the data as a list of (x, y) per device, and what is random (who takes part,
how many steps, which rows make up each mini-batch, the weights) from the caller.
"""

import numpy as np


def losses_and_gradient(weight, bias, x, y):
    scores = x.astype(np.float64) @ weight.T + bias
    scores -= scores.max(axis=1, keepdims=True)
    probabilities = np.exp(scores)
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    losses = -np.log(probabilities[np.arange(len(y)), y])
    probabilities[np.arange(len(y)), y] -= 1.0
    return losses, probabilities.T @ x / len(y), probabilities.mean(axis=0)


def local_solve(weight, bias, x, y, batches, learning_rate, mu):
    """Minimise F_k(w) + mu/2 ||w - w^t||^2 by SGD over the given batches of rows."""
    anchor_weight, anchor_bias = weight.copy(), bias.copy()
    for rows in batches:
        _, slope_weight, slope_bias = losses_and_gradient(weight, bias, x[rows], y[rows])
        weight = weight - learning_rate * (slope_weight + mu * (weight - anchor_weight))
        bias = bias - learning_rate * (slope_bias + mu * (bias - anchor_bias))
    return weight, bias


def round_of(weight, bias, devices, chosen, split_batches, weights, learning_rate, mu):
    """One round: `chosen` devices solve, and the server averages with `weights`."""
    solutions = [
        local_solve(weight, bias, devices[k][0], devices[k][1], batches, learning_rate, mu)
        for k, batches in zip(chosen, split_batches, strict=True)
    ]
    return (
        sum(p * solution[0] for p, solution in zip(weights, solutions, strict=True)),
        sum(p * solution[1] for p, solution in zip(weights, solutions, strict=True)),
    )


def measures(weight, bias, devices):
    """Return f(w), the gradient variance (weights p_k) and B(w)."""
    sizes = np.array([len(y) for _, y in devices])
    masses = sizes / sizes.sum()
    values, slopes = [], []
    for x, y in devices:
        losses, slope_weight, slope_bias = losses_and_gradient(weight, bias, x, y)
        values.append(losses.mean())
        slopes.append(np.concatenate([slope_weight.ravel(), slope_bias]))
    gradients = np.array(slopes)
    mean = masses @ gradients
    variance = masses @ ((gradients - mean) ** 2).sum(axis=1)
    b = np.sqrt(masses @ (gradients**2).sum(axis=1) / (mean @ mean))
    return masses @ values, variance, b
