"""Errors, with messages that say what to do.

Every error a user can cause is a `FedProxError` whose message is one sentence that names the field or file, the
rule, and the value. The command line prints that sentence alone and exits with the error's `exit_code`; before the
sentence on a user's own function it prints the traceback through the user's files.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "ConfigError",
    "DataError",
    "FedProxError",
    "OwnCodeError",
    "RunError",
    "RunFolderError",
    "input_error",
    "nearest",
    "short",
]


_MOST_SHOWN = 120  # characters of a value
_LONGEST = 2000  # characters of a sentence


class FedProxError(Exception):
    """Base of all errors that are reported as one sentence instead of a traceback."""

    exit_code = 1

    def __str__(self) -> str:
        """Return the sentence as any terminal can print it: escaped where it is not UTF-8, and cut if very long."""
        text = super().__str__().encode("utf-8", "backslashreplace").decode()
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


class ConfigError(FedProxError):
    """A setting that breaks a rule."""

    exit_code = 2


class DataError(FedProxError):
    """A data file that is missing, broken or does not fit the model."""

    exit_code = 2


class RunFolderError(FedProxError):
    """A run folder that cannot be written, read or continued."""

    exit_code = 2


class RunError(FedProxError):
    """A run that failed while it was running."""


class OwnCodeError(RunError):
    """A user's function that failed during a run; the cause is its error."""


def input_error(kind: str, sentence: str) -> FedProxError | None:
    """Return the error of bad input that another process has reported, or None for any other kind.

    >>> input_error("DataError", "x must be numbers; got str")
    DataError('x must be numbers; got str')
    """
    known = {each.__name__: each for each in (ConfigError, DataError, RunFolderError)}
    return known[kind](sentence) if kind in known else None


def short(value: object) -> str:
    """Return a value's representation, shortened to fit into a sentence.

    >>> short("x" * 1000)[-3:]
    'xx…'
    """
    try:
        text = repr(value)
    except ValueError:  # an integer with more digits than Python prints
        text = f"a number of {value.bit_length()} bits" if isinstance(value, int) else type(value).__name__
    text = " ".join(text.split()) if "\n" in text else text  # of an array
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean `x`?" for the closest known name, or nothing.

    >>> nearest("methd", ["method", "solver"])
    '; did you mean `method`?'
    """
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean `{close[0]}`?" if close else ""
