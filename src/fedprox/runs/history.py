"""Records of a run as a table: a sequence of rows that converts to a data frame."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, overload

from fedprox.core.errors import DataError, nearest
from fedprox.core.extras import needs_extra

if TYPE_CHECKING:
    import pandas
    import polars

__all__ = ["History"]

Record = dict[str, Any]


class History(Sequence[Record]):
    """Rows (dicts) in the order of rounds.

    >>> history = History([{"round": 0, "train_loss": 2.3}, {"round": 1, "train_loss": 1.9}])
    >>> history[-1]["train_loss"], history.column("round")
    (1.9, [0, 1])
    """

    def __init__(self, rows: Iterable[Record] = ()) -> None:
        self._rows = list(rows)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> History: ...
    def __getitem__(self, index: int | slice) -> Record | History:
        if isinstance(index, str):
            raise DataError(f"a row must be chosen by its number; got {index!r}: use `.column({index!r})` for a column")
        return History(self._rows[index]) if isinstance(index, slice) else self._rows[index]

    def __repr__(self) -> str:
        columns = ", ".join(self._rows[0]) if self._rows else "empty"
        return f"History({len(self)} rows: {columns})"

    def append(self, row: Record) -> None:
        """Add a row at the end."""
        self._rows.append(row)

    def column(self, name: str) -> list[Any]:
        """Return one value per row, None where a row has none; a name that no row has is an error."""
        if self._rows and not any(name in row for row in self._rows):
            known = dict.fromkeys(key for row in self._rows for key in row)
            raise DataError(f"the records have no column `{name}`{nearest(name, known)}")
        return [row.get(name) for row in self._rows]

    def to_pandas(self) -> pandas.DataFrame:
        """Return a pandas frame, one line per row."""
        import pandas

        return pandas.DataFrame(self._rows)

    def to_polars(self) -> polars.DataFrame:
        """Return a polars frame, one line per row (needs polars)."""
        with needs_extra("frames", "`history.to_polars()`"):
            import polars
        return polars.DataFrame(self._rows, infer_schema_length=None)
