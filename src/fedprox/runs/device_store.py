"""What the devices of a run remember, on disk: memory holds a bounded number of states, whatever the number of devices.

States are in segments (`device_segments`), files that are written once. A checkpoint writes one new segment, with the
states that have changed since the last one, and refers to all segments that hold a current state. Besides the changed
states the new segment takes over

- the current ones of a segment half of whose rows have been replaced since, and
- those of segments that are small and no larger than the new one, as when a binary counter carries,

so that the files stay below about twice the states, few, and a state that does not change is rarely written again. A
file is deleted when neither of the two checkpoints refers to it (`unlink_unused`): a process may die at any moment.

In memory are the states since the last checkpoint and as many others as fit; small runs read nothing from disk. Where
the changed ones alone do not fit, they are written before the checkpoint.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from threading import RLock
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.core.errors import RunFolderError
from fedprox.core.trees import Tree, flatten_names, unflatten_names
from fedprox.runs.device_segments import Segment, SegmentReader, Signature, signature_of, write_segment

__all__ = ["DeviceStore", "Secure", "unlink_unused"]

_BYTES = 1 << 28  # of states in memory
_SMALL = 1 << 26  # bytes of a segment that is still taken into a new one of its size
_OVERHEAD = 512  # of a state in memory, beside its arrays

Secure = Callable[[Mapping[int, Any]], Mapping[int, Tree]]


class DeviceStore(MutableMapping[int, Any]):
    """The states of devices by number, in memory as the engine gave them, on disk as arrays.

    Args:
      folder: of the segments; made when the first is written.
      like: a state, for the structure of all.
      secure: turns states as the engine gave them into trees of arrays (`Engine.secure`).
      segments: those of a checkpoint, which have been verified.
      capacity: how many states are held in memory; by default as many as fit into 256 MB.
    """

    def __init__(
        self,
        folder: Path,
        like: Tree,
        secure: Secure = lambda states: states,
        segments: Sequence[Segment] = (),
        capacity: int | None = None,
    ) -> None:
        self._folder, self._like, self._secure = folder, like, secure
        self._size = _OVERHEAD + sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(like))
        self._capacity = capacity or max(_BYTES // self._size, 64)
        self._memory: dict[int, Any] = {}
        self._changed: dict[int, None] = {}  # in the order in which they changed
        self._where = np.full(0, -1, np.int32)  # the number of a device's segment; -1: not on disk
        self._rows = np.zeros(0, np.int32)
        self._readers: dict[int, SegmentReader] = {}
        self._current: dict[int, int] = {}  # how many rows of a segment are current
        self._next = 0
        self._count = 0
        self._lock = RLock()
        for segment in segments:
            self._open(segment)

    def __getitem__(self, device: int) -> Any:
        with self._lock:
            found = self._memory.get(device)
            if found is None:
                if not self._is_on_disk(device):
                    raise KeyError(device)
                found = self._memory[device] = unflatten_names(self._read(device), like=self._like)
                self._make_room()
            return found

    def __setitem__(self, device: int, state: Any) -> None:
        with self._lock:
            self._count += device not in self
            self._memory.pop(device, None)  # it is the newest now
            self._memory[device] = state
            self._changed[device] = None
            if len(self._changed) > self._capacity:
                self._write_changed()
            self._make_room()

    def __delitem__(self, device: int) -> None:
        raise TypeError("what a device remembers is replaced, never deleted")

    def __contains__(self, device: object) -> bool:
        return device in self._memory or (isinstance(device, int) and self._is_on_disk(device))

    def __iter__(self) -> Iterator[int]:
        on_disk = np.flatnonzero(self._where >= 0)
        in_memory = np.fromiter(self._changed, np.int64, len(self._changed))
        return iter(np.union1d(on_disk, in_memory).tolist())

    def __len__(self) -> int:
        return self._count

    @property
    def is_small(self) -> bool:
        """Whether all states fit into memory."""
        return self._count <= self._capacity

    def save(self) -> list[Segment]:
        """Write what has changed, and return the segments that hold all states."""
        with self._lock:
            self._write_changed()
            return [reader.segment for reader in self._readers.values()]

    def close(self) -> None:
        """Close the files."""
        for reader in self._readers.values():
            reader.close()

    def _is_on_disk(self, device: int) -> bool:
        return 0 <= device < len(self._where) and bool(self._where[device] >= 0)

    def _read(self, device: int) -> dict[str, np.ndarray[Any, Any]]:
        return self._readers[int(self._where[device])].state(int(self._rows[device]))

    def _make_room(self) -> None:
        """Drop the states that have been in memory longest and are on disk, an eighth at a time."""
        if len(self._memory) <= self._capacity:
            return
        unchanged = (device for device in self._memory if device not in self._changed)
        for device in list(itertools.islice(unchanged, len(self._memory) - self._capacity * 7 // 8)):
            del self._memory[device]

    def _write_changed(self) -> None:
        """Write the states that have changed, and those of segments that are to be taken in, and close the latter."""
        if not self._changed:
            return
        changed = sorted(self._changed)
        trees = self._secure({device: self._memory[device] for device in changed})
        named = {device: flatten_names(trees[device]) for device in changed}
        taken_in = self._taken_in(changed)
        moved = [device for number in taken_in for device in self._current_devices(number, named)]
        kinds: dict[Signature, list[int]] = {}
        for device in changed:
            kinds.setdefault(signature_of(named[device]), []).append(device)
        for device in moved:
            kinds.setdefault(self._readers[int(self._where[device])].signature, []).append(device)

        def read(device: int) -> dict[str, np.ndarray[Any, Any]]:
            return named[device] if device in named else self._read(device)

        try:
            written = self._write(kinds, read)
        except OSError as error:
            folder = self._folder.parent.parent
            raise RunFolderError(f"run folder {folder} cannot be written: {error.strerror or error}") from None
        for segment in written:
            self._open(segment)
        self._changed.clear()
        for number in [number for number, rows in self._current.items() if rows == 0]:
            self._readers.pop(number).close()
            del self._current[number]

    def _write(self, kinds: Mapping[Signature, Sequence[int]], read: Callable[[int], Any]) -> list[Segment]:
        self._folder.mkdir(exist_ok=True)
        return [
            write_segment(self._folder, f"{self._free_number():08d}.safetensors", sorted(devices), kind, read)
            for kind, devices in kinds.items()
        ]

    def _taken_in(self, changed: Sequence[int]) -> list[int]:
        """Return the segments whose current states go into the new one."""
        lost = self._numbers(changed)
        left = {number: rows - int((lost == number).sum()) for number, rows in self._current.items()}
        found = [number for number, rows in left.items() if 0 < rows <= self._readers[number].segment.rows // 2]
        total = len(changed) + sum(left[number] for number in found)
        for number in reversed([*left]):
            if number in found or left[number] == 0:
                continue
            if left[number] > total or left[number] * self._size > _SMALL:
                break
            found.append(number)
            total += left[number]
        return sorted(found)

    def _numbers(self, devices: Sequence[int]) -> NDArray[np.int32]:
        known = [device for device in devices if device < len(self._where)]
        return self._where[known]

    def _current_devices(self, number: int, without: Mapping[int, Any]) -> list[int]:
        devices = self._readers[number].devices
        current = devices[self._where[devices] == number].tolist()
        return [device for device in current if device not in without]

    def _open(self, segment: Segment) -> None:
        """Open a segment; its states are current from now on."""
        reader = SegmentReader(self._folder, segment)
        devices = reader.devices
        if len(devices):
            unflatten_names(reader.state(0), like=self._like)  # refuses what does not fit the run
            self._grow(int(devices.max()) + 1)
        before = self._where[devices]
        for number, rows in zip(*np.unique(before[before >= 0], return_counts=True), strict=True):
            self._current[int(number)] -= int(rows)
        self._count += sum(device not in self._memory for device in devices[before < 0].tolist())
        number, self._next = self._next, self._next + 1
        self._where[devices], self._rows[devices] = number, np.arange(len(devices), dtype=np.int32)
        self._readers[number], self._current[number] = reader, len(devices)

    def _grow(self, devices: int) -> None:
        if devices > len(self._where):
            more = max(devices, 2 * len(self._where)) - len(self._where)
            self._where = np.concatenate([self._where, np.full(more, -1, np.int32)])
            self._rows = np.concatenate([self._rows, np.zeros(more, np.int32)])

    def _free_number(self) -> int:
        """Return a number that no file of the folder has, also of those that are left over."""
        numbers = [int(path.stem) for path in self._folder.glob("[0-9]*.safetensors") if path.stem.isdigit()]
        return max(numbers, default=-1) + 1


def unlink_unused(folder: Path, used: set[str]) -> None:
    """Delete the files of a folder that no checkpoint refers to."""
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        if path.name not in used:
            path.unlink(missing_ok=True)
