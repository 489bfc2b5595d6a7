"""Rules that choose the devices of a round by what is known of them, each in one file; `devices.sampling` names one."""

from __future__ import annotations

__all__: list[str] = []
