"""The products and exponentials of a linear model, in forms that become fast code within a single kernel.

XLA compiles a product of two matrices inline as long as no dimension exceeds `SMALL`; for a larger one it calls a
library, which the code of a single kernel cannot do. It compiles a product of a matrix with a vector, and sums of a few
products of numbers, well at any size, and from a few vector registers on better than a product of two matrices, one of
which it transposes. So within a single kernel a matrix is taken a vector at a time.

A row that begins with a line of the cache and fills whole lines is copied and multiplied fastest. So rows are filled
with zeros: those of the data when they are loaded, those of the weights at the start of a loop of SGD
(`Model.wide`). The functions here take matrices with such columns and without.
"""

from __future__ import annotations

from functools import reduce

import jax
import jax.numpy as jnp
from jax import lax

from fedprox.core.kernels import SMALL, is_within_one_kernel

__all__ = ["exponentials", "fill_columns", "is_small", "outer_products", "scores", "whole_lines"]

_TILE = 8  # rows that XLA's product with a vector takes at once
_LINE = 16  # numbers in a line of the cache, and in the largest vector registers
_NARROW = 9  # columns for which a line of zeros takes longer
_ENOUGH = 22  # columns from which on whole lines take less time
_SHORT = 24  # length below which LLVM unrolls a loop before it could use vector registers
_MOST_WEIGHTS = 1 << 14  # of more, the library's products are faster


def is_small(rows: int, columns: int) -> bool:
    """Return whether the products with a matrix of this shape are best compiled into one kernel.

    >>> is_small(10, 60), is_small(10, 784), is_small(100, 784), is_small(200, 60)
    (True, True, False, False)
    """
    return rows <= SMALL and (columns <= SMALL or rows * whole_lines(rows, columns) <= _MOST_WEIGHTS)


def whole_lines(classes: int, features: int) -> int:
    """Return how many columns a row is best given: whole lines of the cache, where that is not too many more.

    LLVM unrolls the copy of a row of two lines. Where there is little other work, three take less time.

    >>> [whole_lines(10, features) for features in (8, 12, 20, 30, 100, 784)], whole_lines(62, 30)
    ([8, 16, 20, 48, 112, 784], 32)
    """
    if features < (_ENOUGH if classes >= _TILE else _LINE + 1):
        return _LINE if _NARROW < features < _LINE else features
    return max(3 if classes < _SHORT else 2, -(-features // _LINE)) * _LINE


def fill_columns(matrix: jax.Array, columns: int) -> jax.Array:
    """Return a matrix, or several, with columns of zeros so that it has that many.

    This is `jnp.pad` and not `lax.pad`, which XLA fuses with the gather of the rows into a loop without vectors.
    """
    missing = columns - matrix.shape[-1]
    return jnp.pad(matrix, (*((0, 0),) * (matrix.ndim - 1), (0, missing))) if missing else matrix


def scores(weight: jax.Array, x: jax.Array) -> jax.Array:
    """Return weight x^T, (classes, examples); columns that one of them lacks are zero in the other."""
    weight, x = _equally_wide(weight, x)
    if not _is_long(len(weight), *x.shape):
        return weight @ x.T
    if len(x) < min(_TILE, len(weight)):
        return lax.map(lambda example: weight @ example, x).T
    return lax.map(lambda row: x @ row, weight)


def outer_products(residuals: jax.Array, weight: jax.Array, x: jax.Array) -> jax.Array:
    """Return residuals x, of the weight's shape: the sum over the examples of residual x_i^T."""
    features = weight.shape[1]
    _, x = _equally_wide(weight, x)
    if _is_long(len(weight), *x.shape) and (x.shape[1] > SMALL or len(x) < _TILE):
        return _sum_of_tiles(residuals, x)[:, :features]
    return (residuals @ x)[:, :features]


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


def _is_long(classes: int, examples: int, columns: int) -> bool:
    """Return whether products are best taken a vector at a time, in a single kernel."""
    return is_within_one_kernel() and columns > _matrix_columns(classes, examples) and is_small(classes, columns)


def _equally_wide(weight: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return both with the columns that products are taken over."""
    own, most = weight.shape[1], max(weight.shape[1], x.shape[1])
    if not _is_long(len(weight), len(x), most):
        return weight, fill_columns(x[:, :own], own)
    columns = whole_lines(len(weight), most) if len(x) >= _TILE else most  # for a few examples filling does not pay
    return fill_columns(weight, columns), fill_columns(x, columns)


def _matrix_columns(classes: int, examples: int) -> int:
    """Return up to how many columns a product of two matrices is faster than products with a vector."""
    if not 1 < examples < _SHORT:
        return SMALL // 2
    if classes >= _SHORT:
        return 2 * _LINE
    return _SHORT - 1 if classes >= _TILE else _LINE
