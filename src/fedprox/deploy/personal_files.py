"""Personal parameters on a device: files that never leave it.

Each time a device has trained, its personal parameters are written as a version, whose name the server has given. With
each message the server says which version counts: that of the device's last reply that was merged. So a reply that came
too late, and a round that is repeated after a resume, have no effect. Versions are kept as far back as a checkpoint of
the server may go.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedprox.core.errors import RunFolderError
from fedprox.core.files import read_tensors, write_tensors
from fedprox.core.trees import Tree, flatten_names, unflatten_names

__all__ = ["PersonalFiles"]


@dataclass(frozen=True)
class PersonalFiles:
    """The versions of one device's personal parameters in one run."""

    folder: Path

    def read(self, version: str, like: Tree) -> Tree | None:
        """Return a version, or None where the device does not have it, or not as it was written."""
        try:
            return unflatten_names(read_tensors(self._file(version))[0], like=like)
        except (RunFolderError, ValueError):
            return None

    def write(self, version: str, before: str, params: Tree, *, oldest: int) -> None:
        """Write a version that was trained from the version `before`; no checkpoint is of a round before `oldest`."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_tensors(self._file(version), flatten_names(params), {"before": before})
        self._remove_old(version, before, oldest)

    def _remove_old(self, version: str, before: str, oldest: int) -> None:
        """Remove the versions that no checkpoint refers to: those not merged, and those before the last that may be."""
        merged = []
        while before and self._file(before).exists():
            merged.append(before)
            if _round(before) <= oldest:
                break
            before = self._before(before)
        for file in self.folder.glob("*.safetensors"):
            if file.stem not in merged and _round(file.stem) < _round(version):
                file.unlink(missing_ok=True)

    def _before(self, version: str) -> str:
        try:
            return str((read_tensors(self._file(version))[1] or {}).get("before", ""))
        except RunFolderError:
            return ""

    def _file(self, version: str) -> Path:
        return self.folder / f"{version}.safetensors"


def _round(version: str) -> int:
    return int(version.partition("-")[0])
