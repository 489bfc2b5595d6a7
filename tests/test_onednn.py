"""Convolutions by oneDNN agree with XLA's, are used where they can be, and their programs are not kept on disk."""

import dataclasses
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedprox import Population, models, train
from fedprox.core.convolutions import onednn
from fedprox.core.fast_forms import in_fast_forms

AXES = ("NHWC", "HWIO", "NHWC")
needs_onednn = pytest.mark.skipif(not onednn.is_available(), reason="this build of XLA cannot call oneDNN")


def image(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def by_xla(x, weights, strides=(1, 1), padding=((0, 0), (0, 0)), dilation=(1, 1)):
    return lax.conv_general_dilated(x, weights, strides, padding, rhs_dilation=dilation, dimension_numbers=AXES)


def calls(function, *arguments):
    """Return how often a program calls oneDNN, and how often it convolves otherwise."""
    text = jax.jit(in_fast_forms(function)).lower(*arguments).as_text()
    return text.count("__onednn$convolution"), text.count("stablehlo.convolution")


@needs_onednn
@pytest.mark.parametrize("shape", [(3, 8, 7, 3, 16), (2, 6, 6, 16, 16), (1, 9, 5, 40, 24)])
@pytest.mark.parametrize(
    "place",
    [
        {},
        {"padding": ((1, 1), (2, 0))},
        {"strides": (2, 1), "padding": ((0, 2), (1, 1))},
        {"dilation": (2, 1), "padding": ((1, 1), (0, 1))},
    ],
)
def test_it_agrees_with_xla(shape, place):
    examples, height, width, inputs, outputs = shape
    x, weights = image(examples, height, width, inputs), image(3, 2, inputs, outputs, seed=1)
    place = {"strides": (1, 1), "padding": ((0, 0), (0, 0)), **place}
    found = jax.jit(lambda x, weights: onednn.convolve(x, weights, **place))(x, weights)
    np.testing.assert_allclose(found, by_xla(x, weights, **place), rtol=1e-4, atol=1e-4)


@needs_onednn
def test_a_convolution_and_its_derivative_by_the_image_call_it_and_that_by_the_weights_does_not():
    x, weights = image(20, 12, 12, 3), image(3, 3, 3, 8, seed=1)
    padding = ((1, 1), (1, 1))

    def square(x, weights):
        return jnp.square(by_xla(x, weights, padding=padding)).sum()

    assert calls(lambda x, w: by_xla(x, w, padding=padding), x, weights) == (1, 0)
    assert calls(jax.grad(square), x, weights) == (2, 0)
    assert calls(jax.grad(square, argnums=1), x, weights) == (1, 0)


@needs_onednn
@pytest.mark.parametrize(
    ("x", "weights", "options"),
    [
        (image(2, 6, 6, 4), image(3, 3, 2, 6), {"feature_group_count": 2}),
        (image(2, 6, 6, 4), image(3, 3, 4, 6), {"lhs_dilation": (2, 2), "padding": ((0, 0), (0, 0))}),
        (image(2, 6, 6, 4), image(3, 3, 4, 6), {"padding": ((-1, 0), (0, 0))}),
        (image(2, 6, 6, 4).astype(np.float16), image(3, 3, 4, 6).astype(np.float16), {}),
        (image(0, 6, 6, 4), image(3, 3, 4, 6), {}),
        (image(2, 6, 4), image(3, 4, 6), {"dimension_numbers": ("NWC", "WIO", "NWC"), "window_strides": (1,)}),
        (image(1, 12, 12, 4), image(10, 10, 4, 6), {}),
        (image(2, 6, 6, 1), image(3, 3, 1, 8), {}),
    ],
    ids=["groups", "dilated image", "cut image", "half precision", "no examples", "one axis", "large window", "grey"],
)
def test_other_convolutions_are_left_to_xla(x, weights, options):
    options = {"window_strides": (1, 1), "padding": "VALID", "dimension_numbers": AXES, **options}
    assert calls(lambda x, weights: lax.conv_general_dilated(x, weights, **options), x, weights)[0] == 0


def test_without_it_xla_convolves(monkeypatch):
    monkeypatch.setattr(onednn, "is_available", lambda: False)
    x, weights = image(2, 6, 6, 16), image(3, 3, 16, 32)
    assert calls(by_xla, x, weights) == (0, 1)


@pytest.mark.parametrize(
    "fault",
    [ValueError("unknown target"), TypeError("unexpected keyword argument"), AttributeError("jax.ffi"), None],
    ids=["refused", "another signature", "moved", "wrong"],
)
def test_a_call_that_fails_or_is_wrong_is_not_used(monkeypatch, fault):
    def call(x, weights, **_):
        if fault is not None:
            raise fault
        return jnp.zeros((2, 2, 6, 4))

    monkeypatch.setattr(onednn, "convolve", call)
    assert not onednn.is_available.__wrapped__()


def test_it_is_not_used_where_programs_with_it_cannot_be_kept_out_of_the_cache(monkeypatch):
    monkeypatch.delattr("jax._src.compilation_cache.put_executable_and_time")
    assert not onednn.is_available.__wrapped__()


def test_networks_train_without_it(monkeypatch):
    """What is computed is the same up to rounding."""
    images, labels = image(40, 12, 12, 3), np.arange(40) % 3
    population = Population.from_arrays(images, labels, np.arange(40) // 10)
    config = {"rounds": 2, "model": {"name": "resnet8"}, "solver": {"epochs": 1}, "devices": {"per_round": 4}}
    found = []
    for is_available in (onednn.is_available(), False):
        monkeypatch.setattr(onednn, "is_available", lambda answer=is_available: answer)
        jax.clear_caches()
        model = dataclasses.replace(models.build("resnet8", (12, 12, 3), 3))  # another object: compiled again
        found.append(train(config, population=population, model=model).history[-1]["train_loss"])
    assert found[0] == pytest.approx(found[1], rel=1e-3)


PROGRAM = """
import hashlib, os, sys
os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[: int(sys.argv[1])]))
import jax, numpy as np
from jax import lax
from fedprox.core.compilation import compiled, prepare

prepare()
random = np.random.default_rng(0)
found = hashlib.sha256()
for size, inputs, outputs in ((32, 3, 16), (16, 16, 16), (8, 64, 64)):
    x = random.normal(size=(32, size, size, inputs)).astype(np.float32)
    weights = random.normal(size=(3, 3, inputs, outputs)).astype(np.float32)
    convolve = compiled(lambda x, w: lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
    found.update(np.asarray(convolve(x, weights)))
compiled(lambda x: x + 1)(x)
print(found.hexdigest())
"""


@needs_onednn
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system does not bind processes to cores")
def test_any_number_of_threads_gives_the_same_bits_and_no_program_with_it_is_kept(tmp_path):
    variables = {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    runs = [
        subprocess.run(
            [sys.executable, "-W", "error", "-c", PROGRAM, cores],
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
        for cores in ("1", "2")
    ]
    assert [(run.returncode, run.stderr) for run in runs] == [(0, ""), (0, "")]
    assert runs[0].stdout == runs[1].stdout
    kept = [file for file in tmp_path.iterdir() if file.name.endswith("-cache")]
    assert kept
    assert all(b"__onednn$" not in file.read_bytes() for file in kept)
    assert not any("convolve" in file.name for file in kept)
