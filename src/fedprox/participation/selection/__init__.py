"""Rules that choose a round's devices by what is known about them, one per file; `devices.sampling` names one."""

from __future__ import annotations

__all__: list[str] = []
