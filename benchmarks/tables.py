"""What benchmarks that fill a page share: a cache of results, Markdown tables, and the machine's name."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"

Cache = dict[str, dict[str, Any]]


def read_cache(path: Path) -> Cache:
    return json.loads(path.read_text()) if path.exists() else {}


def save_cache(path: Path, cache: Cache) -> None:
    """Write one result per line, so that a change of one is a change of one line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(cache[key])}" for key in sorted(cache))
    path.write_text("{\n" + lines + "\n}\n")


def heading(*cells: str) -> list[str]:
    return [line(*cells), "|---" * len(cells) + "|"]


def line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def write_table(page: Path, text: str, begin: str = BEGIN, end: str = END) -> None:
    """Put the text between the marks of a page."""
    before, _, rest = page.read_text().partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def machine() -> str:
    """Return the number of cores and the processor's name where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [text.partition(": ")[2] for text in lines if text.startswith("model name")]
    return f"{len(os.sched_getaffinity(0))} cores of {models[0] if models else platform.machine()}"
