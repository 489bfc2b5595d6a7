"""The setting that an unknown key was meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from fedprox.config.meanings import SHORT_NAMES
from fedprox.core.errors import nearest

__all__ = ["nearest_key"]


def nearest_key(key: str, known: Iterable[str]) -> str:
    """Return what an error says after an unknown key: the key that was meant, or the keys of its section.

    The section alone makes any two of its keys look alike, so only their last parts are compared.

    >>> every = ["rounds", "method.mu", "solver.learning_rate", "privacy.clip", "privacy.noise_multiplier"]
    >>> nearest_key("solver.lr", every)
    '; did you mean `solver.learning_rate`?'
    >>> nearest_key("solver.mu", every)
    '; did you mean `method.mu`?'
    >>> nearest_key("privacy.noise", every)
    '; did you mean `privacy.noise_multiplier`?'
    >>> nearest_key("privacy.epsilon", every)
    '; `privacy` has clip, noise_multiplier'
    >>> nearest_key("name", ["data.name", "model.name", "method.name"])
    '; did you mean `data.name`, `model.name` or `method.name`?'
    """
    every = list(dict.fromkeys(known))
    section, _, last = key.rpartition(".")
    inside = [each.removeprefix(f"{section}.") for each in every if section and each.startswith(f"{section}.")]
    lasts = [each.rpartition(".")[2] for each in every]
    alike = (
        last if section or last in lasts else next(iter(difflib.get_close_matches(last, lasts, n=1, cutoff=0.75)), "")
    )
    elsewhere = [each for each, name in zip(every, lasts, strict=True) if name == alike]
    if close := [each for each in inside if each.startswith(last)] or difflib.get_close_matches(last, inside, n=1):
        return f"; did you mean `{section}.{close[0]}`?"
    if last in SHORT_NAMES:
        return f"; did you mean `{SHORT_NAMES[last]}`?"
    if elsewhere and (not section or len(elsewhere) == 1):
        *first, final = (f"`{each}`" for each in elsewhere)
        return f"; did you mean {', '.join(first)}{' or ' if first else ''}{final}?"
    if inside:
        return f"; `{section}` has {', '.join(inside)}"
    return nearest(key, [*every, *dict.fromkeys(each.partition(".")[0] for each in every)])
