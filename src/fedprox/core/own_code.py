"""Functions that users write: what goes wrong in one becomes one sentence that names the function and the line.

The sentence is raised from the original error, so that Python shows its traceback too. On the command line a failure
during a run is printed with the traceback of the user's files (`own_traceback`); one before the run is a sentence.
"""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from fedprox.core.errors import FedProxError, OwnCodeError
from fedprox.core.reading import reason

__all__ = ["describe_failure", "is_library_code", "own_code", "own_hooks", "own_traceback"]

_LIBRARIES = (
    str(Path(__file__).parents[1]) + os.sep,
    *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")),
    "<",
)


@contextmanager
def own_code(part: str, error: type[FedProxError] = OwnCodeError) -> Iterator[None]:
    """Turn a failure of a user's function into a sentence; `part` says which function it is.

    >>> with own_code("the metric 'f1'"):
    ...     {}["precision"]
    Traceback (most recent call last):
    fedprox.core.errors.OwnCodeError: the metric 'f1' failed with KeyError: 'precision'
    """
    try:
        yield
    except (FedProxError, MemoryError):
        raise
    except (Exception, SystemExit) as failure:  # a user's function may fail in any way
        raise error(f"{part} failed with {describe_failure(failure)}") from failure


@contextmanager
def own_hooks() -> Iterator[None]:
    """Turn an error that comes out of a user's file into a sentence that names the function which the library called.

    The parts of a run have many functions. This covers all that are called inside; errors of the library itself, and
    its own sentences, pass unchanged.
    """
    try:
        yield
    except (FedProxError, MemoryError):
        raise
    except (Exception, SystemExit) as failure:
        called = next((frame for frame, _ in _frames(failure) if _is_own(frame.f_code.co_filename)), None)
        if called is None:
            raise
        raise OwnCodeError(f"{called.f_code.co_qualname} failed with {describe_failure(failure)}") from failure


def is_library_code(part: object) -> bool:
    """Return whether the class of a part, or a function, is one of this library.

    >>> is_library_code(own_code), is_library_code(print)
    (True, False)
    """
    module = getattr(part, "__module__", None) or type(part).__module__
    return module.partition(".")[0] == "fedprox"


def describe_failure(failure: BaseException) -> str:
    """Return the kind of an error, its message, and the last line of a user's file that led to it."""
    frames = _own_frames(failure)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(failure).__name__}: {reason(failure)}{place}"


def own_traceback(failure: BaseException) -> str:
    """Return the traceback of an error through the user's files; nothing where there is none."""
    frames = traceback.format_list(_own_frames(failure))
    head = ["Traceback (most recent call last), of your own files:\n", *frames]
    return "".join([*head, *traceback.format_exception_only(failure)]) if frames else ""


def _own_frames(failure: BaseException) -> list[traceback.FrameSummary]:
    return [frame for frame in traceback.extract_tb(failure.__traceback__) if _is_own(frame.filename)]


def _frames(failure: BaseException) -> Iterator[tuple[FrameType, int]]:
    return traceback.walk_tb(failure.__traceback__)


def _is_own(file: str) -> bool:
    """Return whether a file is a user's; frames of compiled libraries name the Cython source that they were made of.

    >>> _is_own("/home/me/mine.py"), _is_own("numpy/random/_generator.pyx")
    (True, False)
    """
    return not file.startswith(_LIBRARIES) and not file.endswith((".pyx", ".pxi", ".pxd"))
