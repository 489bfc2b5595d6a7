"""Hooks of a method that can be called for many devices at once.

`linear` and `reply` of most methods add, subtract and scale trees, entry by entry. Such a hook gives the same numbers
for each device if the trees of many devices are stacked in one, with a first axis over the devices
(`fedprox.core.lines`), together with trees without it, which all devices share. A hook that says so with `@elementwise`
costs a group of small devices one call; one that is `Method`'s own (`@standard`) costs none. A mark belongs to the
function: a subclass that overrides the hook loses it.

    @elementwise
    def reply(self, solution):
        return Reply(solution.params, difference(solution.params, solution.anchor))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

__all__ = ["elementwise", "is_elementwise", "is_standard", "standard"]

Hook = TypeVar("Hook", bound=Callable[..., object])


def elementwise(hook: Hook) -> Hook:
    """Mark a hook whose arithmetic is entry by entry; a number in its result applies to all devices of the call."""
    vars(hook)["is_elementwise"] = True
    return hook


def is_elementwise(hook: Callable[..., object]) -> bool:
    """Return whether a hook is marked.

    >>> is_elementwise(elementwise(lambda solution: solution)), is_elementwise(lambda solution: solution)
    (True, False)
    """
    return getattr(hook, "is_elementwise", False)


def standard(hook: Hook) -> Hook:
    """Mark a hook of `Method` itself, whose result an engine knows without a call."""
    vars(hook)["is_standard"] = True
    return hook


def is_standard(hook: Callable[..., object]) -> bool:
    """Return whether a hook is the one of `Method`.

    >>> is_standard(standard(lambda solution: solution)), is_standard(print)
    (True, False)
    """
    return getattr(hook, "is_standard", False)
