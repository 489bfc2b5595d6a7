"""The kind of setting that names columns of a table."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

__all__ = ["Columns"]

Columns = Annotated[tuple[str, ...], Field(description='a list of column names, such as ["a", "b"]')]
"""Names of columns, as TOML gives them: a list of text."""
