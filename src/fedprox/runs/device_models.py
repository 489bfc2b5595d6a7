"""The models of devices that have their own, made from what they remember when they are needed.

A model of each of a million devices does not fit into memory, so there is none before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fedprox.core.trees import Tree
from fedprox.runs.device_store import DeviceStore, Secure

__all__ = ["DeviceModels", "gathered"]


class DeviceModels(Mapping[int, Tree]):
    """The models by device, of those that remember something.

    >>> models = DeviceModels({3: 1.5}, lambda states: states, lambda state: 2 * state)
    >>> models[3], 4 in models, len(models)
    (3.0, False, 1)
    """

    def __init__(self, states: Mapping[int, Any], secure: Secure, model_of: Callable[[Tree], Tree]) -> None:
        self._states, self._secure, self._model_of = states, secure, model_of

    def __getitem__(self, device: int) -> Tree:
        return self._model_of(self._secure({device: self._states[device]})[device])

    def __contains__(self, device: object) -> bool:
        return device in self._states

    def __iter__(self) -> Iterator[int]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)

    @property
    def fit_into_memory(self) -> bool:
        """Whether all of them may be held at once."""
        return not isinstance(self._states, DeviceStore) or self._states.is_small


def gathered(models: Mapping[int, Tree]) -> Mapping[int, Tree]:
    """Return the models themselves where they fit into memory."""
    return models if isinstance(models, DeviceModels) and not models.fit_into_memory else dict(models)
