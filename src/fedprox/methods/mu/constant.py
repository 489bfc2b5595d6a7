"""One mu for all rounds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from fedprox.methods.mu.controller import Signals

__all__ = ["ConstantMu"]


@dataclass(frozen=True)
class ConstantMu:
    """One mu for all rounds."""

    learns: ClassVar[bool] = False

    mu: float

    def after(self, signals: Signals) -> ConstantMu:
        """Return itself: a constant never changes."""
        return self

    def state(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)
