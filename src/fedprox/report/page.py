"""The report as one HTML page that needs nothing else: no network, no other file.

Plotly's script comes from the installed package. It is compressed (to a quarter of its size) and decompressed by the
browser; the page's policy forbids every request, except those of a live page to its own server.
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

__all__ = ["card", "grid", "page", "table"]


def page(title: str, sections: Sequence[str], data: Mapping[str, Any], *, live: bool = False) -> str:
    """Return the complete page: `sections` are HTML, `data` is what page.js plots.

    A `live` page may request newer data from its own server; any other page may make no request.
    """
    resources = files("fedprox.report")
    return Template(resources.joinpath("page.html").read_text("utf-8")).substitute(
        title=html.escape(title),
        connect="; connect-src 'self'" if live else "",
        version=__version__,
        style=resources.joinpath("page.css").read_text("utf-8"),
        script=resources.joinpath("page.js").read_text("utf-8"),
        body="\n".join(sections),
        data=json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        plotly=base64.b64encode(gzip.compress(_plotly().encode(), mtime=0)).decode(),
    )


def grid(*cards: str) -> str:
    """Return cards side by side as far as the page is wide."""
    return '<div class="grid">' + "".join(cards) + "</div>"


def card(figure: Mapping[str, Any], wide: bool = False) -> str:
    """Return the place of a figure."""
    kind = "card wide" if wide else "card"
    return f'<div class="{kind}"><h3>{figure["title"]}</h3><div class="plot" id="plot-{figure["name"]}"></div></div>'


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
