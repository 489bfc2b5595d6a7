"""Many runs: comparisons, suites, sweeps and tuning on one scheduler."""

from __future__ import annotations

__all__: list[str] = []
