"""Functions that users write: what goes wrong in one becomes one sentence that names the function and the line.

In Python the sentence is raised from the original error, so that its traceback is shown too.
"""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedprox.core.errors import FedProxError, RunError
from fedprox.core.reading import reason

__all__ = ["describe_failure", "is_library_code", "own_code"]

_LIBRARIES = (
    str(Path(__file__).parents[1]),
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    "<",
)


@contextmanager
def own_code(part: str, error: type[FedProxError] = RunError) -> Iterator[None]:
    """Turn a failure of a user's function into a sentence; `part` says which function it is.

    >>> with own_code("the metric 'f1'"):
    ...     {}["precision"]
    Traceback (most recent call last):
    fedprox.core.errors.RunError: the metric 'f1' failed with KeyError: 'precision'
    """
    try:
        yield
    except (FedProxError, MemoryError):
        raise
    except Exception as failure:  # a user's function may fail in any way
        raise error(f"{part} failed with {describe_failure(failure)}") from failure


def is_library_code(part: object) -> bool:
    """Return whether the class of a part, or a function, is one of this library.

    >>> is_library_code(own_code), is_library_code(print)
    (True, False)
    """
    module = getattr(part, "__module__", None) or type(part).__module__
    return module.partition(".")[0] == "fedprox"


def describe_failure(failure: BaseException) -> str:
    """Return the kind of an error, its message, and the last line of a user's file that led to it."""
    frames = [
        frame for frame in traceback.extract_tb(failure.__traceback__) if not frame.filename.startswith(_LIBRARIES)
    ]
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(failure).__name__}: {reason(failure)}{place}"
