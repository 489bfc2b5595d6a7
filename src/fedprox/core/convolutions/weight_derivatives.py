"""The derivative of a convolution by its weights where there are few channels.

    out[r, d, c, o] = sum over n, y, x of image[n, y + r, x + d, c] change[n, y, x, o]

As a convolution whose window is the whole change, each product has few outputs, since d, c and o are small, and XLA
copies the image for each of them. Here copies of the change, each shifted by one d, stand side by side as outputs
(d, o) and the pixels of a row are the inputs: what is left is a convolution along y of rows with c pixels. It is summed
over a few examples at a time, whose copies stay in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

__all__ = ["by_rows"]

_PIXELS = 1024  # of images that are taken at once


def by_rows(image: jax.Array, change: jax.Array, padding: Sequence[tuple[int, int]]) -> jax.Array:
    """Return the derivative (rows, columns, inputs, outputs) by the weights of a window that moves by single pixels.

    Args:
      image: (examples, height, width, inputs).
      change: of the convolution's result, (examples, height, width, outputs).
      padding: how many zeros are added before and after the image, down and across.
    """
    examples, height, width, inputs = image.shape
    outputs = change.shape[-1]
    rows, columns = (
        size + sum(pad) - length + 1
        for size, pad, length in zip(image.shape[1:3], padding, change.shape[1:3], strict=True)
    )
    most = max(_PIXELS // (height * width), 1)
    together = max(n for n in range(1, examples + 1) if examples % n == 0 and n <= most)
    left, right = padding[1]
    shifted = ((0, 0, 0), (0, 0, 0), (columns - 1 - left, columns - 1 - right, 0), (0, 0, 0))

    def add_examples(part: jax.Array, total: jax.Array) -> jax.Array:
        some, changes = (lax.dynamic_slice_in_dim(each, part * together, together) for each in (image, change))
        lines = some.transpose(1, 3, 0, 2).reshape(1, height, inputs, together * width)
        changes = lax.pad(changes, jnp.zeros((), change.dtype), shifted).transpose(1, 0, 2, 3)
        copies = [lax.slice_in_dim(changes, begin, begin + width, axis=2) for begin in reversed(range(columns))]
        window = jnp.concatenate(copies, axis=-1).reshape(change.shape[1], 1, together * width, columns * outputs)
        form = ("NHWC", "HWIO", "NHWC")
        return total + lax.conv_general_dilated(lines, window, (1, 1), (padding[0], (0, 0)), dimension_numbers=form)

    start = jnp.zeros((1, rows, inputs, columns * outputs), image.dtype)
    total = lax.fori_loop(0, examples // together, add_examples, start)
    return total.reshape(rows, inputs, columns, outputs).transpose(0, 2, 1, 3)
