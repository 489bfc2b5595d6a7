"""The products and exponentials of a linear model, in forms that become fast code within a single kernel.

XLA compiles a product of two matrices inline as long as no dimension exceeds `SMALL`; for a larger one it calls a
library, which the code of a single kernel cannot do. It compiles a product of a matrix with a vector, and sums of a few
products of numbers, well at any size, and from a few vector registers on better than a product of two matrices, one of
which it transposes. So within a single kernel a matrix is taken a vector at a time, with zeros up to a multiple of a
vector register.
"""

from __future__ import annotations

from functools import reduce

import jax
import jax.numpy as jnp
from jax import lax

from fedprox.core.compilation import SMALL, is_within_one_kernel

__all__ = ["exponentials", "is_small", "outer_products", "scores"]

_TILE = 8  # rows that XLA's product with a vector takes at once
_LANES = 8  # numbers in a vector register
_SHORT = 24  # length below which LLVM unrolls a loop before it could use vector registers
_MOST_WEIGHTS = 1 << 14  # of more, the library's products are faster


def is_small(rows: int, columns: int) -> bool:
    """Return whether the products with a matrix of this shape are best compiled into one kernel.

    >>> is_small(10, 60), is_small(10, 784), is_small(100, 784), is_small(200, 60)
    (True, True, False, False)
    """
    return rows <= SMALL and (columns <= SMALL or rows * columns <= _MOST_WEIGHTS)


def scores(weight: jax.Array, x: jax.Array) -> jax.Array:
    """Return weight x^T, (classes, examples)."""
    if not _is_long(weight, x):
        return weight @ x.T
    weight, x = _padded(weight, len(x)), _padded(x, len(x))
    if len(x) < min(_TILE, len(weight)):
        return lax.map(lambda example: weight @ example, x).T
    return lax.map(lambda row: x @ row, weight)


def outer_products(residuals: jax.Array, x: jax.Array) -> jax.Array:
    """Return residuals x, (classes, features): the sum over the examples of residual x_i^T."""
    if not _is_long(residuals, x):
        return residuals @ x
    columns = _padded(x, len(x))
    if columns.shape[1] > SMALL:
        return _sum_of_tiles(residuals, columns)[:, : x.shape[1]]
    return (residuals @ columns)[:, : x.shape[1]]


def exponentials(matrix: jax.Array) -> jax.Array:
    """Return e^entry for each entry of a matrix.

    LLVM unrolls loops over short rows. So within a single kernel the rows are copied one after
    another into a vector, which is long enough to be processed a register at a time; a loop keeps XLA from seeing that
    the two are the same.
    """
    rows, columns = matrix.shape
    if not is_within_one_kernel() or not _TILE <= columns < _SHORT:
        return jnp.exp(matrix)

    def put(row: jax.Array, flat: jax.Array) -> jax.Array:
        one = lax.dynamic_index_in_dim(matrix, row, keepdims=False)
        return lax.dynamic_update_slice_in_dim(flat, one, row * columns, axis=0)

    flat = lax.fori_loop(0, rows, put, jnp.zeros(rows * columns, matrix.dtype))
    return jnp.exp(flat).reshape(rows, columns)


def _sum_of_tiles(residuals: jax.Array, x: jax.Array) -> jax.Array:
    """Return residuals x, a tile of examples at a time."""
    tiles, rest = divmod(len(x), _TILE)

    def add_tile(tile: jax.Array, total: jax.Array) -> jax.Array:
        first = tile * _TILE
        return total + _few(
            lax.dynamic_slice_in_dim(residuals, first, _TILE, axis=1), lax.dynamic_slice_in_dim(x, first, _TILE)
        )

    if tiles == 0 or len(x) == _TILE:
        return _few(residuals, x)
    start = _few(residuals[:, -rest:], x[-rest:]) if rest else jnp.zeros((len(residuals), x.shape[1]))
    return lax.fori_loop(0, tiles, add_tile, start)


def _few(residuals: jax.Array, x: jax.Array) -> jax.Array:
    """Return residuals x, unrolled example by example."""
    return reduce(jnp.add, (residuals[:, i, None] * x[i] for i in range(len(x))))


def _is_long(matrix: jax.Array, x: jax.Array) -> bool:
    """Return whether products are best taken a vector at a time, in a single kernel."""
    classes, features = len(matrix), x.shape[1]
    return is_within_one_kernel() and features > _matrix_columns(len(x)) and is_small(classes, features)


def _matrix_columns(examples: int) -> int:
    """Return up to how many columns a product of two matrices is faster than products with a vector."""
    if examples < _TILE:
        return SMALL
    return SMALL // 2 if examples >= _SHORT else _SHORT - 1


def _padded(matrix: jax.Array, examples: int) -> jax.Array:
    """Return a matrix of one row for each class or example with columns of zeros, up to `_width`."""
    features = matrix.shape[1]
    return jnp.pad(matrix, ((0, 0), (0, _width(features, examples) - features)))


def _width(features: int, examples: int) -> int:
    """Return the columns that products are taken over; for a few examples padding does not pay.

    >>> _width(784, 10), _width(100, 10), _width(100, 1)
    (784, 104, 100)
    """
    return -(-features // _LANES) * _LANES if examples >= _TILE else features
