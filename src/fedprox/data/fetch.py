"""Downloads: the original files, from their public homes into the user's data folder.

Pooch checks what arrives and moves it to its place only when it is whole. A download that breaks off leaves `NAME.part`
and goes on from there the next time, where the server can; when one address fails, its mirrors are tried in turn.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedprox.core.errors import DataError
from fedprox.data.sources import File, Need, Source, downloads, find

__all__ = ["check", "fetch"]

Progress = Callable[[str, int, int], None]
"""Told (file, bytes so far, bytes in all or 0) while a file arrives."""

_CHUNK = 1 << 20
_PATIENCE = (10, 60)  # seconds to connect, and between two pieces


def fetch(
    source: Source, folders: Sequence[Path] = (), use: Sequence[str] = (), progress: Progress | None = None
) -> dict[str, Path]:
    """Return for each need of a data set a file that serves it; download what is not found."""
    served = {}
    for need, path in zip(source.needs, find(source, folders, use).values(), strict=True):
        served[need.what] = path if path is not None else _download(source, need, folders, progress)
        for file in need.files:
            if file.name == served[need.what].name:
                check(served[need.what], file)
    return served


def check(path: Path, file: File) -> None:
    """Refuse a file whose checksum is not the known one."""
    if file.checksum is None:
        return
    algorithm, _, expected = file.checksum.partition(":")
    with path.open("rb") as content:
        found = hashlib.file_digest(content, algorithm).hexdigest()
    if found != expected and not (file.content and _content(path, file.content) == file.content):
        raise DataError(f"{path} must have the {algorithm} checksum {expected}; got {found}: it is cut off or corrupt")


def _content(path: Path, like: str) -> str:
    """Return the checksum of what a gzipped file holds, in the form of `like`."""
    algorithm = like.partition(":")[0]
    try:
        with gzip.open(path) as content:
            return f"{algorithm}:{hashlib.file_digest(content, algorithm).hexdigest()}"
    except (OSError, EOFError, zlib.error):
        return ""


def _download(source: Source, need: Need, folders: Sequence[Path], progress: Progress | None) -> Path:
    import pooch

    file, folder = need.download, downloads(source.name)
    logger = pooch.get_logger()
    logger.setLevel("ERROR")  # its notes on missing checksums are not the user's concern
    failures = []
    for url in file.urls:
        try:
            pooch.retrieve(url, file.checksum, file.name, folder, downloader=_Resuming(folder / file.name, progress))
        except Exception as error:  # whatever the network does, the next mirror is tried
            failures.append(f"{url} ({_reason(error)})")
        else:
            return folder / file.name
    names = " or ".join(other.name for other in need.files)
    looked = ", ".join(str(place) for place in (*folders, folder))
    raise DataError(
        f"{need.what} is missing: no {names} in {looked}, and the download failed from {'; '.join(failures)}; "
        f"put the file into a folder and name it with --from"
    )


class _Resuming:
    """Downloads over HTTP into `NAME.part` and goes on where an earlier download stopped."""

    def __init__(self, target: Path, progress: Progress | None) -> None:
        self._part = target.with_name(target.name + ".part")
        self._name = target.name
        self._progress = progress

    def __call__(self, url: str, output_file: Any, pooch: Any, check_only: bool = False) -> None:
        import requests

        self._part.parent.mkdir(parents=True, exist_ok=True)
        begun = self._part.stat().st_size if self._part.exists() else 0
        headers: Mapping[str, str] = {"Range": f"bytes={begun}-"} if begun else {}
        with requests.get(url, headers=dict(headers), stream=True, timeout=_PATIENCE) as answer:
            if answer.status_code == requests.codes.requested_range_not_satisfiable:
                self._part.unlink()  # more is there than the server has: start again
                return self(url, output_file, pooch)
            answer.raise_for_status()
            resumed = answer.status_code == requests.codes.partial_content
            done = begun if resumed else 0
            total = done + int(answer.headers.get("content-length", 0))
            with self._part.open("ab" if resumed else "wb") as file:
                for chunk in answer.iter_content(_CHUNK):
                    file.write(chunk)
                    done += len(chunk)
                    if self._progress is not None:
                        self._progress(self._name, done, total)
        if done < total:
            raise DataError(f"the connection ended after {done} of {total} bytes")
        self._part.replace(output_file)
        return None


def _reason(error: Exception) -> str:
    if isinstance(error, DataError):
        return str(error)
    if isinstance(error, ValueError) and "hash" in str(error).lower():
        return "what arrived has another checksum"
    return type(error).__name__
