"""The method of a real device: it solves the subproblem that the server asks it to solve."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedprox.methods import DeviceView, Method, Posed, Reply

__all__ = ["AskedWork"]


@dataclass(frozen=True)
class AskedWork(Method):
    """Solves one subproblem, which may be divided into shared and personal parameters like that of any method."""

    name: str = "asked"
    posed: Posed = field(default_factory=lambda: Posed(None, 0.0, None, None))

    def work(self, device: DeviceView) -> Reply:
        """Return the solution."""
        return Reply(device.solve(**self.posed._asdict()).params)
