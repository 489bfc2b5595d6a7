"""Fields that a user's class declares, with or without a type.

`@dataclass` ignores an attribute without a type: `proximal = True` in a subclass would silently leave the inherited
default in place. A subclass of `DeclaredFields` takes such an attribute as the new default of the inherited field, and
one that declares fields without being a dataclass is refused.
"""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass
from typing import Any, Self

from fedprox.core.errors import ConfigError

__all__ = ["DeclaredFields"]


class DeclaredFields:
    """A base of frozen dataclasses that users inherit from.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Part(DeclaredFields):
    ...     name: str = "part"
    >>> @dataclass(frozen=True)
    ... class Own(Part):
    ...     name = "own"
    >>> Own().name
    'own'
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own, inherited = inspect.get_annotations(cls), _inherited_types(cls)
        untyped = {name: kind for name, kind in inherited.items() if name in vars(cls) and name not in own}
        if untyped:
            cls.__annotations__ = {**own, **untyped}

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Refuse a class that declares fields but is not a dataclass."""
        declared = [name for name in inspect.get_annotations(cls) if not name.startswith("_")]
        if declared and "__dataclass_fields__" not in vars(cls):
            raise ConfigError(
                f"a part must be a dataclass where it declares fields; got the class {cls.__name__} with "
                f"{', '.join(f'`{name}`' for name in declared)}; write `@dataclass(frozen=True)` above it"
            )
        return super().__new__(cls)


def _inherited_types(cls: type) -> dict[str, Any]:
    base = cls.__base__
    return {field.name: field.type for field in fields(base)} if base is not None and is_dataclass(base) else {}
