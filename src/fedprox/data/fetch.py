"""Downloads of the original files into the user's data folder.

Only https is used. A download is checked before it gets its final name: by its SHA-256 where that is known, otherwise
by its content; so an error page is never taken for data. When one address fails, its mirrors are tried in turn.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from fedprox.core.errors import DataError
from fedprox.data.checksums import check, record
from fedprox.data.partial_download import PartialDownload, Progress
from fedprox.data.sources import File, Need, Source, downloads, find

__all__ = ["fetch"]


def fetch(
    source: Source, folders: Sequence[Path] = (), use: Sequence[str] = (), progress: Progress | None = None
) -> dict[str, Path]:
    """Return a file for each need of a data set; download those that are not found."""
    served = {}
    for need, path in zip(source.needs, find(source, folders, use).values(), strict=True):
        served[need.what] = path if path is not None else _download(source, need, folders, progress)
        for file in need.files:
            if file.name == served[need.what].name:
                check(served[need.what], file)
    return served


def _download(source: Source, need: Need, folders: Sequence[Path], progress: Progress | None) -> Path:
    import pooch

    file, folder = need.download, downloads(source.name)
    _check_writable(folder)
    logger = pooch.get_logger()
    logger.setLevel("ERROR")  # its messages about missing checksums do not concern the user
    failures = []
    for url in file.urls:
        downloader = PartialDownload(folder / file.name, lambda part: _accept(part, file), progress)
        try:
            pooch.retrieve(url, _known(file), file.name, folder, downloader=downloader)
        except Exception as error:  # after any network error the next mirror is tried
            failures.append(f"{url} ({str(error) if isinstance(error, DataError) else type(error).__name__})")
            continue
        if file.sha256 is None:
            record(folder / file.name)
        shutil.rmtree(folder / "partial", ignore_errors=True)
        return folder / file.name
    names = " or ".join(other.name for other in need.files)
    places = (*folders, folder)
    looked = ", ".join(str(place) for place in places)
    pickled = next((path for place in places for name in need.pickled if (path := place / name).exists()), None)
    hint = f"; {pickled} holds pickles, which are not read: take the binary version" if pickled else ""
    raise DataError(
        f"{need.what} is missing: no {names} in {looked}, and the download failed from {'; '.join(failures)}; "
        f"put the file into a folder and name it with --from{hint}"
    )


def _check_writable(folder: Path) -> None:
    """Refuse a folder that cannot hold a download, before any address is contacted."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        reason = None if os.access(folder, os.W_OK) else os.strerror(errno.EACCES)
    except OSError as error:
        reason = error.strerror
    if reason:
        raise DataError(f"{folder} cannot be written: {reason}; set FEDPROX_DATA to a writable folder")


def _known(file: File) -> str | None:
    """Return the checksum that pooch compares; a file that may be compressed differently is checked here only."""
    return f"sha256:{file.sha256}" if file.sha256 and not file.content else None


def _accept(part: Path, file: File) -> None:
    """Refuse a download that is not the expected file."""
    if file.sha256 is None and file.examine is None:
        raise DataError(f"{file.name} has neither a known checksum nor a check of its content")
    check(part, file)
    if file.examine is not None:
        file.examine(part)
