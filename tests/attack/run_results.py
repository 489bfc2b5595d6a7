"""What a command left, as digests without the times in it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

__all__ = ["digests", "run_results"]

TIMES = ("seconds", "solve_seconds", "measure_seconds", "speed", "waited")


def digests(out: Path, *patterns: str) -> dict[str, str]:
    """Return the digest of each file, without times."""
    found = {}
    for path in sorted(path for pattern in patterns for path in out.glob(pattern)):
        content = path.read_bytes()
        if path.suffix == ".jsonl":
            rows = [json.loads(line) for line in content.splitlines()]
            content = json.dumps([{k: v for k, v in row.items() if k not in TIMES} for row in rows]).encode()
        found[str(path.relative_to(out))] = hashlib.sha256(content).hexdigest()
    return found


def run_results(out: Path) -> dict[str, str]:
    names = ("metrics.jsonl", "devices.jsonl", "evaluation.jsonl", "model.safetensors")
    return digests(out, *(f"**/{name}" for name in names))
