"""w^0: the model that a run starts from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedprox.config import Config
from fedprox.core.errors import ConfigError
from fedprox.core.files import read_tensors
from fedprox.core.randomness import Purpose, words
from fedprox.core.trees import Tree, is_finite, to_numpy, unflatten_names
from fedprox.models import Model
from fedprox.models.model_check import checked_params
from fedprox.models.softmax_regression import glorot_start

__all__ = ["initial_params"]


def initial_params(config: Config, model: Model, labels: Sequence[Any] | None = None) -> Tree:
    """Return w^0: drawn for the seed (`compat.initial` says how for softmax regression), or read from `model.init`.

    `labels` are the names of the classes in the data; a saved model with other names is refused.
    """
    key_words = words(1, config.seed, Purpose.INITIAL_MODEL).view(np.uint32)
    key = jax.random.wrap_key_data(jax.numpy.asarray(key_words))
    params = checked_params(model, key)
    if config.compat.initial == "released" and model.name == "softmax_regression":
        params = to_numpy(glorot_start(key, params))
    if not config.model.init:
        return params
    path = Path(config.model.init)
    named, values = read_tensors(path / "model.safetensors" if path.is_dir() else path)
    if values is not None:  # it was saved by this library, which stores the labels if they have names
        known, wanted = values.get("labels"), None if labels is None else list(labels)
        if known != wanted:
            raise ConfigError(
                f"`model.init` must have been trained with the labels of the data, {_listed(wanted)}; "
                f"got {config.model.init!r}, which has {_listed(known)}"
            )
    if spoilt := [name for name, leaf in named.items() if not is_finite(leaf)]:
        raise ConfigError(
            f"`model.init` must hold only finite numbers, which {spoilt[0]!r} does not; got {config.model.init!r}"
        )
    try:
        return unflatten_names(named, like=params)
    except ValueError as error:
        raise ConfigError(f"`model.init` must fit the model {model.name}: {error}; got {config.model.init!r}") from None


def _listed(labels: Sequence[Any] | None) -> str:
    if labels is None:
        return "the numbers from 0 on"
    return ", ".join(map(repr, labels[:5])) + (", ..." if len(labels) > 5 else "")
