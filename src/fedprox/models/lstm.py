"""Long short-term memory (LSTM), stacked in layers and written for one core.

With input x_t, hidden state h_t and cell c_t (both start at zero), a layer computes at each time step

    (i, f, g, o) = x_t U + h_{t-1} V + b
    c_t = sigmoid(f) * c_{t-1} + sigmoid(i) * tanh(g),      h_t = sigmoid(o) * tanh(c_t)

Only h_{t-1} V depends on the previous step. So for a gradient x U is one product over all time steps, the backward pass
walks through time with the gradients of the gates alone, and those of U and V are one product each over all time steps
afterwards. Automatic differentiation of the loop would take them step by step instead. x U, the gates and their
gradients are the largest arrays; each takes the memory of the one before, which it replaces step by step. Where no
gradient is needed, x_t U is taken in its step, and nothing else is kept than the hidden states.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedprox.core.kernels import one_kernel
from fedprox.core.trees import Tree
from fedprox.models.draws import uniform

__all__ = ["init_layer", "last_hidden"]

_State = tuple[jax.Array, jax.Array]  # two of (batch, hidden)


def init_layer(key: jax.Array, inputs: int, hidden: int) -> Tree:
    """Return a layer's parameters: `input` U (inputs, 4 hidden), `hidden` V (hidden, 4 hidden) and `bias` b.

    U and V are uniform within Glorot's limit sqrt(6 / (rows + columns)) for the one matrix that they form together.
    Biases are zero, except for the forget gate f, where they are one so that a new layer keeps its state.
    """
    limit = math.sqrt(6 / (inputs + hidden + 4 * hidden))
    weight = uniform(key, (inputs + hidden, 4 * hidden), limit)
    bias = jnp.asarray(np.repeat(np.array([0, 1, 0, 0], np.float32), hidden))
    return {"bias": bias, "hidden": weight[inputs:], "input": weight[:inputs]}


@jax.custom_vjp
def last_hidden(layers: Sequence[Tree], inputs: jax.Array) -> jax.Array:
    """Return the top layer's last hidden state (batch, hidden), for inputs (time, batch, features).

    >>> layers = [init_layer(jax.random.key(k), inputs=3, hidden=3) for k in range(2)]
    >>> last_hidden(layers, jnp.zeros((5, 1, 3))).tolist()  # nothing in, nothing out
    [[0.0, 0.0, 0.0]]
    """
    for layer in layers:
        inputs = _hidden_states(layer, inputs)
    return inputs[-1]


class _Walk(NamedTuple):
    """What the backward pass needs from a layer's forward pass."""

    weights: Tree  # as `_widened` gives them
    inputs: jax.Array  # (time, batch, features)
    gates: jax.Array  # (time, batch, width): sigmoid(i), sigmoid(f), tanh(g), sigmoid(o)
    cell_before: jax.Array  # (time, batch, hidden)
    squashed: jax.Array  # (time, batch, hidden): tanh(cell)
    hidden: jax.Array  # (time, batch, hidden)


def _forward(layers: Sequence[Tree], inputs: jax.Array) -> tuple[jax.Array, list[_Walk]]:
    walks = []
    for layer in layers:
        walks.append(_walk(layer, inputs))
        inputs = walks[-1].hidden
    return inputs[-1], walks


def _backward(walks: list[_Walk], last_slope: jax.Array) -> tuple[list[Tree], jax.Array | None]:
    """Return the gradients of layers and inputs, given that of the last hidden state."""
    gradients = []
    slopes: jax.Array | None = None  # of a layer's hidden states, through the layer above; the top layer has none
    for walk in reversed(walks):
        gate_slopes = _walk_back(walk, last_slope, slopes)
        gradients.append(_layer_gradient(walk, gate_slopes))
        slopes = _product(gate_slopes, walk.weights["input"].T)
        last_slope = jnp.zeros_like(walk.inputs[-1])
    return gradients[::-1], slopes


last_hidden.defvjp(_forward, _backward)


def _hidden_states(layer: Tree, inputs: jax.Array) -> jax.Array:
    """Return a layer's hidden states (time, batch, hidden)."""
    weights = _widened(layer)
    advance = one_kernel(lambda *arguments: _advance(*arguments)[2:])

    def step(state: _State, x: jax.Array) -> tuple[_State, jax.Array]:
        hidden, cell = state
        cell, hidden = advance(x @ weights["input"], weights["bias"], hidden @ weights["hidden"], cell)
        return (hidden, cell), hidden

    zero = _zero_state(layer, inputs)
    return lax.scan(step, (zero, zero), inputs)[1]


def _walk(layer: Tree, inputs: jax.Array) -> _Walk:
    weights = _widened(layer)
    advance = one_kernel(_advance)

    def step(t: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        hidden, cell, *kept = carry  # from step t on, kept[0] still holds x U
        gates, squashed, following, hidden = advance(_at(kept[0], t), weights["bias"], hidden @ weights["hidden"], cell)
        new = (gates, cell, squashed, hidden)
        return hidden, following, *(_put(array, t, one) for array, one in zip(kept, new, strict=True))

    zero = _zero_state(layer, inputs)
    empty = jnp.zeros((len(inputs), *zero.shape), zero.dtype)
    start = (zero, zero, _product(inputs, weights["input"]), empty, empty, empty)
    _, _, *kept = lax.fori_loop(0, len(inputs), step, start)
    return _Walk(weights, inputs, *kept)


def _walk_back(walk: _Walk, last_slope: jax.Array, slopes: jax.Array | None) -> jax.Array:
    """Return the gradients of the gates before their sigmoid or tanh, (time, batch, width)."""
    transposed = lax.optimization_barrier(walk.weights["hidden"].T)  # laid out once, not in every product
    retreat = one_kernel(_retreat)
    read = (walk.squashed, walk.cell_before, *(() if slopes is None else (slopes,)))
    last = len(walk.gates) - 1

    def step(taken: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        t = last - taken
        hidden_slope, cell_slope, gates = carry  # after step t, `gates` holds their gradients
        gate_slope, cell_slope = retreat(hidden_slope, cell_slope, *(_at(array, t) for array in (gates, *read)))
        return gate_slope @ transposed, cell_slope, _put(gates, t, gate_slope)

    return lax.fori_loop(0, last + 1, step, (last_slope, jnp.zeros_like(last_slope), walk.gates))[2]


def _layer_gradient(walk: _Walk, gate_slopes: jax.Array) -> Tree:
    columns = 4 * walk.hidden.shape[-1]
    flat = gate_slopes.reshape(-1, gate_slopes.shape[-1])

    def gathered(factor: jax.Array) -> jax.Array:
        return (factor.reshape(len(flat), -1).T @ flat)[:, :columns]

    return {
        "bias": flat.sum(axis=0)[:columns],
        "hidden": gathered(_one_later(walk.hidden)),
        "input": gathered(walk.inputs),
    }


def _advance(projected: jax.Array, bias: jax.Array, recurrent: jax.Array, cell: jax.Array) -> tuple[jax.Array, ...]:
    """Take one time step from x U, b, h V and the cell: return gates, tanh(cell), cell and hidden state."""
    hidden = cell.shape[-1]
    # sigmoid(z) = tanh(z / 2) / 2 + 1 / 2, so that one tanh serves all gates; columns beyond them become 0
    scale, shift = np.zeros((2, recurrent.shape[-1]), np.float32)
    scale[: 4 * hidden] = np.repeat([0.5, 0.5, 1.0, 0.5], hidden)
    shift[: 4 * hidden] = np.repeat([0.5, 0.5, 0.0, 0.5], hidden)
    gates = jnp.tanh((projected + bias + recurrent) * scale) * scale + shift
    i, f, g, o = _split(gates, hidden)
    cell = f * cell + i * g
    squashed = jnp.tanh(cell)
    return gates, squashed, cell, o * squashed


def _retreat(
    hidden_slope: jax.Array,
    cell_slope: jax.Array,
    gates: jax.Array,
    squashed: jax.Array,
    cell_before: jax.Array,
    from_above: jax.Array | None = None,
) -> _State:
    """Take one time step back: return the gradients of the gates before sigmoid or tanh, and of the previous cell."""
    if from_above is not None:
        hidden_slope = hidden_slope + from_above
    i, f, g, o = _split(gates, squashed.shape[-1])
    cell_slope = cell_slope + hidden_slope * o * (1 - squashed * squashed)
    parts = [
        cell_slope * g * i * (1 - i),
        cell_slope * cell_before * f * (1 - f),
        cell_slope * i * (1 - g * g),
        hidden_slope * squashed * o * (1 - o),
        jnp.zeros_like(gates[:, 4 * squashed.shape[-1] :]),
    ]
    return jnp.concatenate(parts, axis=1), cell_slope * f


def _split(gates: jax.Array, hidden: int) -> list[jax.Array]:
    return [gates[:, k * hidden : (k + 1) * hidden] for k in range(4)]


def _widened(layer: Tree) -> Tree:
    """Return the parameters with 16 columns of zeros after the gates where rows are a multiple of 2 KiB apart.

    At that distance the rows of a matrix compete for the same few lines of the processor's cache, and products with
    it take up to twice as long.
    """
    if layer["bias"].size % 512:
        return layer
    return {
        name: lax.optimization_barrier(jnp.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, 16)]))
        for name, array in layer.items()
    }


def _product(rows: jax.Array, matrix: jax.Array) -> jax.Array:
    """Return rows @ matrix for rows (time, batch, ...) as one product over all of them."""
    time, batch, length = rows.shape
    return (rows.reshape(time * batch, length) @ matrix).reshape(time, batch, -1)


def _zero_state(layer: Tree, inputs: jax.Array) -> jax.Array:
    return jnp.zeros((inputs.shape[1], len(layer["hidden"])), inputs.dtype)


def _at(states: jax.Array, t: jax.Array) -> jax.Array:
    return lax.dynamic_index_in_dim(states, t, keepdims=False, allow_negative_indices=False)


def _put(states: jax.Array, t: jax.Array, state: jax.Array) -> jax.Array:
    return lax.dynamic_update_index_in_dim(states, state, t, 0, allow_negative_indices=False)


def _one_later(states: jax.Array) -> jax.Array:
    """Return the states before each time step; the first is zero."""
    return jnp.concatenate([jnp.zeros_like(states[:1]), states[:-1]])
