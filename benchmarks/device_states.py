"""What devices remember, for a million of them: memory, time of a checkpoint, bytes written.

    python -m benchmarks.device_states                  a million devices, in a process of its own
    python -m benchmarks.device_states --devices 1e5

Devices of softmax regression with 60 features and 10 classes (610 numbers, 2.4 kB) take part 10,000 at a time. First
each of them once, then as often at random; after every 10,000 there is a checkpoint. Printed are the process's peak
memory before and after, the times of a checkpoint, the bytes that were written relative to the changed states, the size
of the folder, and the time to verify and open it again.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.tables import machine
from fedprox.runs.device_segments import Segment, verify_segment
from fedprox.runs.device_store import DeviceStore, unlink_unused

AT_ONCE = 10_000


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device_states", description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=float, default=1e6)
    parser.add_argument("--folder", type=Path, help="where to write; by default a temporary folder")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        _measure(Path(folder), int(options.devices))


def _measure(folder: Path, devices: int) -> None:
    like = {"weight": np.zeros((60, 10), np.float32), "bias": np.zeros(10, np.float32)}
    store, rng, at_first = DeviceStore(folder, like), np.random.default_rng(0), _peak()
    print(f"{machine()}; {devices:,} devices, {AT_ONCE:,} between two checkpoints; peak memory {at_first:.0f} MB")
    orders = {"each once": np.arange(devices), "at random": rng.integers(devices, size=devices)}
    before: set[str] = set()
    known: dict[str, Segment] = {}
    for label, order in orders.items():
        seconds, reading, written = [], [], 0
        for begin in range(0, devices, AT_ONCE):
            chosen = np.unique(order[begin : begin + AT_ONCE]).tolist()
            clock = time.perf_counter()
            for device in chosen:
                store.get(device)
            reading.append((time.perf_counter() - clock) / len(chosen))
            for device in chosen:
                store[device] = {name: leaf + np.float32(device) for name, leaf in like.items()}
            clock = time.perf_counter()
            segments = store.save()
            files = {segment.file for segment in segments}
            unlink_unused(folder, files | before)
            before = files
            seconds.append(time.perf_counter() - clock)
            new = {segment.file: segment for segment in segments if segment.file not in known}
            known |= new
            written += sum((folder / file).stat().st_size for file in new)
        size = sum(leaf.nbytes for leaf in like.values()) + 8
        print(
            f"{label}: checkpoint {1000 * statistics.median(seconds):.0f} ms in the middle, "
            f"{1000 * max(seconds):.0f} ms at most; a state read in {1e6 * statistics.median(reading):.0f} us; "
            f"{written / (len(order) * size):.2f} times the changed states written; {len(segments)} files, "
            f"{sum((folder / file).stat().st_size for file in files) / 1e9:.2f} GB; peak memory {_peak():.0f} MB"
        )
    clock = time.perf_counter()
    for segment in segments:
        verify_segment(folder, segment)
    verified = time.perf_counter() - clock
    again = DeviceStore(folder, like, segments=segments)
    opened = time.perf_counter() - clock - verified
    assert len(again) == devices
    print(f"verified in {verified:.1f} s, opened in {opened:.2f} s")


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
