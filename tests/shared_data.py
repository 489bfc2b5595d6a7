"""The real files that lie beside the repository; a test that needs one says so when it is not there."""

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("FEDPROX_TEST_DATA", Path(__file__).parents[1].parent / "shared" / "data"))


def real(name: str) -> Path:
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"the real file {name} is not in {FOLDER}")
    return path
