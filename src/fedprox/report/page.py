"""The report as one HTML page that needs nothing else: no network, no other file.

Plotly's script comes from the installed package. It is packed (a quarter of its size) and unpacked by the browser; the
page forbids itself every request to anywhere.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from string import Template
from typing import Any

from fedprox import __version__

__all__ = ["page", "table"]


def page(title: str, sections: Sequence[str], data: Mapping[str, Any]) -> str:
    """Return the whole page: `sections` are HTML, `data` is what page.js draws."""
    resources = files("fedprox.report")
    return Template(resources.joinpath("page.html").read_text("utf-8")).substitute(
        title=html.escape(title),
        version=__version__,
        style=resources.joinpath("page.css").read_text("utf-8"),
        script=resources.joinpath("page.js").read_text("utf-8"),
        body="\n".join(sections),
        data=json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        plotly=base64.b64encode(gzip.compress(_plotly().encode(), mtime=0)).decode(),
    )


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], marked: Sequence[bool] | None = None) -> str:
    """Return an HTML table; marked rows stand out.

    >>> "<td>a&lt;b</td><td>0.5</td>" in table(["method", "loss"], [["a<b", "0.5"]])
    True
    """
    head = "".join(f"<th>{html.escape(text)}</th>" for text in headings)
    lines = []
    for index, row in enumerate(rows):
        mark = ' class="marked"' if marked is not None and marked[index] else ""
        cells = "".join(f"<td>{html.escape(text)}</td>" for text in row)
        lines.append(f"<tr{mark}>{cells}</tr>")
    body = "\n".join(lines)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    script: str = get_plotlyjs()
    return script
