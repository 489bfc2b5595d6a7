"""A download over HTTPS that can be interrupted, and is resumed only if the file is still the same.

The bytes so far are in `partial/NAME`; `partial/NAME.json` records their address and version (the server's ETag, or
when the file was last changed). The next attempt at this address asks for the rest of that version. Another address,
another version, or a server that names no version begins again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedprox.core.errors import DataError

__all__ = ["PartialDownload", "Progress"]

Progress = Callable[[str, int, int], None]
"""Called with (file, bytes so far, total bytes or 0) during a download."""

_CHUNK = 1 << 16
_PATIENCE = (10, 60)  # seconds to connect, and between two pieces


class PartialDownload:
    """Downloads one file, as a downloader of pooch; `accept(path)` raises unless it is the expected file."""

    def __init__(self, target: Path, accept: Callable[[Path], None], progress: Progress | None) -> None:
        self._part = target.parent / "partial" / target.name
        self._note = self._part.with_name(f"{target.name}.json")
        self._accept, self._progress = accept, progress

    def __call__(self, url: str, output_file: Any, pooch: Any, check_only: bool = False) -> None:
        """Download `url` to `output_file`."""
        import requests

        if not url.startswith("https://"):
            raise DataError(f"downloads must use https; got {url}")
        self._part.parent.mkdir(parents=True, exist_ok=True)
        begun, version = self._begun(url)
        headers = {"Accept-Encoding": "identity"}
        if begun:
            headers |= {"Range": f"bytes={begun}-", "If-Range": version}
        with requests.Session() as session:
            del session.adapters["http://"]  # a redirection must not lead away from https either
            with session.get(url, headers=headers, stream=True, timeout=_PATIENCE) as answer:
                if answer.status_code == requests.codes.requested_range_not_satisfiable and begun:
                    self._forget()
                    return self(url, output_file, pooch)
                answer.raise_for_status()
                self._receive(url, answer, begun)
        try:
            self._accept(self._part)
        except DataError:
            self._forget()  # a wrong file is not resumed either
            raise
        self._part.replace(output_file)
        self._forget()
        return None

    def _receive(self, url: str, answer: Any, begun: int) -> None:
        done = begun if begun and _rest_begins(answer) == begun else 0
        if answer.status_code == 206 and not done:
            raise DataError("the server sent another part of the file than requested")
        if not done:
            self._forget()
            version = _version(answer.headers)
            self._note.write_text(json.dumps({"url": url, "version": version}), encoding="utf-8")
        total = done + int(answer.headers.get("content-length", 0))
        with self._part.open("ab" if done else "wb") as file:
            for chunk in answer.iter_content(_CHUNK):
                file.write(chunk)
                done += len(chunk)
                if self._progress is not None:
                    self._progress(self._part.name, done, total)
        if done < total:
            raise DataError(f"the connection ended after {done} of {total} bytes")

    def _begun(self, url: str) -> tuple[int, str]:
        """Return how many bytes of the file at an address are present, and their version."""
        try:
            note = json.loads(self._note.read_text(encoding="utf-8"))
            if note["url"] == url and isinstance(note["version"], str) and note["version"]:
                return self._part.stat().st_size, note["version"]
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return 0, ""

    def _forget(self) -> None:
        self._part.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)


def _version(headers: Any) -> str:
    """Return the server's identifier of this version of a file: a strong ETag, or the time of its last change."""
    etag = str(headers.get("etag", ""))
    return etag if etag and not etag.startswith("W/") else str(headers.get("last-modified", ""))


def _rest_begins(answer: Any) -> int:
    """Return the first byte of a partial response, or -1 for a complete one."""
    match = re.match(r"bytes (\d+)-", answer.headers.get("content-range", ""))
    return int(match[1]) if answer.status_code == 206 and match else -1
