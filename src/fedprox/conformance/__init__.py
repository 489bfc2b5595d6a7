"""A conformance suite for FedProx: known problems for any local update, and messages that explain a failure.

fedprox conformance my_package.my_module:my_function
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedprox.conformance.checks import Check, check

if TYPE_CHECKING:
    from fedprox.conformance.adapter import ours

__all__ = ["Check", "check", "ours"]


def __getattr__(name: str) -> Any:
    if name != "ours":
        raise AttributeError(f"module 'fedprox.conformance' has no attribute {name!r}")
    from fedprox.conformance.adapter import ours

    return ours
