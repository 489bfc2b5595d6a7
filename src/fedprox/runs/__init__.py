"""What a run leaves behind: its folder, its history, and reading, evaluating and exporting it."""

from __future__ import annotations

__all__: list[str] = []
