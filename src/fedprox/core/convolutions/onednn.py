"""Convolutions by oneDNN, a library of kernels for networks that is part of XLA's CPU compiler.

XLA's own kernel copies the pixels under the window before it multiplies, which few channels do not pay for; oneDNN's
reads the image in place. XLA has an instruction that calls it, but its compiler never chooses it, so it is written into
the program here. What it computes does not depend on the number of threads.

The instruction is not part of JAX's public interface, and not all builds have it (those for ARM do not). So it is tried
once, and used only if its result is right.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import jax
import numpy as np
from jax import lax

__all__ = ["convolve", "is_available"]

_TARGET = "__onednn$convolution"
_IMAGE = {"dims": 4, "data": {"batch_dim": 0, "feature_dim": 3, "spatial_dims": [1, 2]}}
_WEIGHTS = {"dims": 4, "filter": {"input_feature_dim": 2, "output_feature_dim": 3, "spatial_dims": [0, 1]}}


def convolve(
    image: jax.Array,
    weights: jax.Array,
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int] = (1, 1),
) -> jax.Array:
    """Return the convolution of images (examples, height, width, inputs) with weights (height, width, inputs, outputs).

    Args:
      strides: how many pixels the window moves by, down and across.
      padding: how many zeros are added before and after the image, down and across.
      dilation: how many pixels the window's rows and columns are apart.
    """
    sides = (
        (size + low + high - step * (window - 1) - 1) // stride + 1
        for size, window, stride, (low, high), step in zip(
            image.shape[1:3], weights.shape[:2], strides, padding, dilation, strict=True
        )
    )
    window = {
        "size": weights.shape[:2],
        "strides": list(strides),
        "pad_left": [low for low, _ in padding],
        "pad_right": [high for _, high in padding],
        "window_dilations": list(dilation),
    }
    config = {"dims": 4, "feature_groups": 1, "input": _IMAGE, "kernel": _WEIGHTS, "output": _IMAGE, "window": window}
    result = jax.ShapeDtypeStruct((image.shape[0], *sides, weights.shape[-1]), image.dtype)
    call = jax.ffi.ffi_call(
        _TARGET, result, custom_call_api_version=3, legacy_backend_config=json.dumps({"onednn_conv_config": config})
    )
    return call(image, weights)


@cache
def is_available() -> bool:
    """Return whether this build of XLA can call oneDNN, with the right result."""
    if jax.default_backend() != "cpu" or not _is_kept_out_of_cache():
        return False
    random = np.random.default_rng(0)
    image, weights = random.normal(size=(2, 5, 6, 3)), random.normal(size=(3, 2, 3, 4))
    arrays = image.astype(np.float32), weights.astype(np.float32)
    place: dict[str, Any] = {"strides": (2, 1), "padding": ((1, 0), (0, 2)), "dilation": (1, 2)}

    def by_xla(image: jax.Array, weights: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(
            image,
            weights,
            place["strides"],
            place["padding"],
            rhs_dilation=place["dilation"],
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )

    try:
        found, right = (
            jax.jit(function).lower(*arrays).compile()(*arrays)  # at once, also while another program is traced
            for function in (lambda *pair: convolve(*pair, **place), by_xla)
        )
    except (jax.errors.JaxRuntimeError, AttributeError, NotImplementedError, TypeError, ValueError):
        return False
    return bool(np.allclose(found, right, rtol=1e-4, atol=1e-4))


def _is_kept_out_of_cache() -> bool:
    """Make JAX keep no program with such a call on disk, since XLA cannot write it, and return whether that was done.

    JAX has no public interface for this. Should its internals have changed, oneDNN is not used.
    """
    try:
        from jax._src import compilation_cache

        put = compilation_cache.put_executable_and_time
    except (ImportError, AttributeError):
        return False

    def put_others(*arguments: Any, **options: Any) -> None:
        programs = [each for each in (*arguments, *options.values()) if hasattr(each, "hlo_modules")]
        if not any(_TARGET in module.to_string() for program in programs for module in program.hlo_modules()):
            put(*arguments, **options)

    vars(compilation_cache)["put_executable_and_time"] = put_others
    return True
