"""Single convolutions of our networks and their derivatives, beside PyTorch's.

    python -m benchmarks.convolutions [--turns 15]

Milliseconds of processor time for 32 images: the convolution, its derivative by the image and that by the weights, ours
in the body of a compiled loop as in a local solve, PyTorch's by its operators, which call oneDNN. One core, in turns,
the best turn counts.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from benchmarks.networks import best
from benchmarks.tables import heading, line
from fedprox.core.compilation import compiled, prepare

EXAMPLES = 32
SHAPES = {  # pixels along a side, inputs, outputs, pixels along a side of the window, how many of them it moves by
    "resnet, first": (32, 3, 16, 3, 1),
    "resnet, stage 1": (32, 16, 16, 3, 1),
    "resnet, stage 2, first": (32, 16, 32, 3, 2),
    "resnet, stage 2": (16, 32, 32, 3, 1),
    "resnet, stage 3, first": (16, 32, 64, 3, 2),
    "resnet, stage 3": (8, 64, 64, 3, 1),
    "cnn, first": (28, 1, 16, 5, 1),
    "cnn, second": (14, 16, 32, 5, 1),
    "mcmahan_cnn, second": (14, 32, 64, 5, 1),
}


def contenders(side: int, inputs: int, outputs: int, window: int, step: int) -> list[Callable[[], float]]:
    """Return ours and PyTorch's convolution, derivative by the image, and derivative by the weights."""
    random = np.random.default_rng(0)
    image, weights, change = (
        random.normal(size=shape).astype(np.float32)
        for shape in (
            (EXAMPLES, side, side, inputs),
            (window, window, inputs, outputs),
            (EXAMPLES, side // step, side // step, outputs),
        )
    )

    def convolve(image: jax.Array, weights: jax.Array) -> jax.Array:
        sides, form = [(window // 2, window // 2)] * 2, ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(image, weights, (step, step), sides, dimension_numbers=form)

    def by_image(weights: jax.Array, change: jax.Array) -> jax.Array:
        return jax.vjp(lambda image: convolve(image, weights), image)[1](change)[0]

    def by_weights(image: jax.Array, change: jax.Array) -> jax.Array:
        return jax.vjp(lambda weights: convolve(image, weights), weights)[1](change)[0]

    theirs = [torch.from_numpy(array).permute(0, 3, 1, 2).contiguous() for array in (image, change)]
    kernel = torch.from_numpy(weights).permute(3, 2, 0, 1).contiguous()
    padding = [window // 2] * 2

    def derivative(wanted: list[bool]) -> Any:
        rest = (None, [step, step], padding, [1, 1], False, [0, 0], 1, wanted)
        return torch.ops.aten.convolution_backward(theirs[1], theirs[0], kernel, *rest)

    return [
        partial(timed, in_loop(convolve, image, weights)),
        partial(timed, partial(torch.nn.functional.conv2d, theirs[0], kernel, stride=step, padding=padding)),
        partial(timed, in_loop(by_image, weights, change)),
        partial(timed, partial(derivative, [True, False, False])),
        partial(timed, in_loop(by_weights, image, change)),
        partial(timed, partial(derivative, [False, True, False])),
    ]


def in_loop(function: Callable[..., jax.Array], *arrays: Any) -> Callable[[], Any]:
    """Return a call of the function within a compiled loop of one step, compiled."""
    arguments = [jnp.asarray(array) for array in arrays]
    nothing = jnp.zeros(jax.eval_shape(function, *arguments).shape)

    def program(steps: jax.Array, *arguments: jax.Array) -> jax.Array:
        return lax.fori_loop(0, steps, lambda *_: function(*arguments), nothing)

    run = partial(compiled(program), 1, *arguments)
    jax.block_until_ready(run())
    return lambda: jax.block_until_ready(run())


def timed(call: Callable[[], Any]) -> float:
    begin = time.process_time()
    call()
    return time.process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=15)
    turns = parser.parse_args().turns
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    prepare()
    torch.set_num_threads(1)
    rows = heading("layer", "convolution, ms", "PyTorch", "by the image", "PyTorch", "by the weights", "PyTorch")
    for name, shape in SHAPES.items():
        rows.append(line(name, *(f"{seconds * 1e3:.2f}" for seconds in best(contenders(*shape), turns))))
    print("\n".join(rows))


if __name__ == "__main__":
    main()
