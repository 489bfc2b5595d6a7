"""What every layer uses: errors, random streams, trees of arrays, files, compilation and threads."""

from __future__ import annotations

__all__: list[str] = []
