"""Functions that users override: each must take the arguments that the library calls it with."""

from __future__ import annotations

import inspect

from fedprox.core.errors import ConfigError

__all__ = ["check_signatures"]


def check_signatures(part: object, base: type, words: str) -> None:
    """Refuse an object whose functions do not take what those of its base class take; `words` say what it is.

    >>> class Rule:
    ...     def merge(self, replies, weights): ...
    >>> class Own(Rule):
    ...     def merge(self, replies): ...
    >>> check_signatures(Own(), Rule, "the merge rule 'own'")
    Traceback (most recent call last):
    fedprox.core.errors.ConfigError: merge of the merge rule 'own' must take (replies, weights); got (replies)
    """
    for name, wanted in vars(base).items():
        if name.startswith("_") or not inspect.isfunction(wanted) or getattr(type(part), name, None) is wanted:
            continue
        _, *parameters = inspect.signature(wanted).parameters.values()
        try:
            own = inspect.signature(getattr(part, name))
        except (TypeError, ValueError):  # not a function, or one written in C
            continue
        named = {each.name: None for each in parameters if each.kind is each.KEYWORD_ONLY}
        try:
            own.bind(*(None for each in parameters if each.name not in named), **named)
        except TypeError:
            arguments = ", ".join(each.name for each in parameters)
            got = ", ".join(str(each.name) for each in own.parameters.values())
            raise ConfigError(f"{name} of {words} must take ({arguments}); got ({got})") from None
