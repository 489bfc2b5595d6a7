"""The Complete Works of Shakespeare as text, parsed into speaking roles.

Two layouts of Project Gutenberg are understood. In the one of 1994 (etext 100, the one that the paper's data come
from) a speech begins with an indented name, and the lines after it are indented further:

      COUNTESS. Heaven bless him! Farewell, Bertram.            Exit
      LAFEU. Farewell, pretty lady; you must hold the credit of your
        father.                             Exeunt BERTRAM and LAFEU

(in one play nothing is indented). In the later one the name stands alone in capitals and the speech follows below:

    COUNTESS.
    Heaven bless him! Farewell, Bertram.

Left out are the licence, prefaces, poems and lists of persons, headings of acts and scenes, and stage directions: lines
that begin with a word such as Enter or Exeunt, what stands in brackets, and what follows a wide gap at a line's end.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

__all__ = ["parse_plays", "role_name"]

_BY = re.compile(r"^by William Shakespeare\s*$", re.MULTILINE | re.IGNORECASE)
_ACT = re.compile(
    r"^[^\S\n]*(?:ACT|Act|SCENE|Scene|INDUCTION|Induction)[ _]+(?:[IVXivx\d]+|ONE|First|PROLOGUE)\b.*$"
    r"|^[^\S\n]*INDUCTION",
    re.MULTILINE,
)
_END = re.compile(r"^[^\S\n]*(?:THE END|1[56]\d\d)[^\S\n]*$", re.MULTILINE)  # or the year of the next work
_STAGE = "Re-?enter|Enter|Exit|Exeunt|Flourish|Alarums?|Sennet|Music|Trumpets?"
_HEADING = re.compile(r"\s*(?:ACT|SCENE|Act|Scene)\b")
_DIRECTION = re.compile(
    rf"\s*[\[(_<]*(?:{_STAGE}|Excursions|Hautboys|Drums?|Thunder|Retreat|Curtain|Cornets?|Dumb show|Finis|THE END)\b"
)
_TRAILING = re.compile(
    rf"(?<=\S)\s{{3,}}[\[_(<]*(?:{_STAGE}|Dies|Sings|Aside)\b.*$|(?<=\S)\s{{6,}}\[?[A-Z][^.!?;]*\]?$"
)
_WRAPPED = 55  # a stage direction this long continues in the next line
_BRACKETS = re.compile(r"\[[^\]\n]{0,100}(?:\n[^\]\n]{0,100}){0,3}\]|_\[?[^_\n]*\]?_")  # bounded, so that it is fast
_NAME = r"(?:[1-9]\. ?)?[A-Z][A-Za-z'\-]*(?:[ ,&]+(?:of|the|and|de|with|[A-Z][A-Za-z'\-]*)){0,4}"
_SPEAKER = {
    "indented": re.compile(rf"^ {{1,3}}({_NAME})\.(?:\s+(.*))?$"),
    "flush": re.compile(r"^([A-Z][A-Z'\u2019\- ]*[A-Z])\.(?:\s+(.*))?$"),
    "alone": re.compile(r"^([A-Z][A-Z'\u2019,\- ]*[A-Z])\.\s*$"),
}


def parse_plays(text: str) -> Iterator[tuple[str, str, str]]:
    r"""Yield (play, speaker, speech) for every speech of every play.

    >>> works = "1599\n\nA PLAY\n\nby William Shakespeare\n\nACT I. SCENE 1.\nA room\n\nEnter ANNE\n\n"
    >>> works += "  ANNE. Good\n    morrow. [Aside] Alas!          Exit\n  TOM. Well met.\n"
    >>> list(parse_plays(works))
    [('A PLAY', 'ANNE', 'Good morrow. Alas!'), ('A PLAY', 'TOM', 'Well met.')]
    """
    for title, body in _works(_without_notices(text.replace("\r\n", "\n"))):
        first = _ACT.search(body)
        if first is not None:  # otherwise it is a poem
            last = _END.search(body, first.start())
            play = body[first.start() : last.start() if last else None]
            yield from ((title, *speech) for speech in _speeches(play) if speech[1])


def role_name(play: str, speaker: str) -> str:
    """Return the device's name: PLAY_ROLE in capitals.

    >>> role_name("Macbeth", "First Witch")
    'MACBETH_FIRST_WITCH'
    """
    return "_".join(re.sub(r"[^A-Za-z0-9]+", "_", part).strip("_").upper() for part in (play, speaker))


def _without_notices(text: str) -> str:
    """Leave out the notices of the edition of 1994, which stand between << and >>."""
    kept, begin = [], 0
    while (start := text.find("<<", begin)) >= 0 and (end := text.find(">>", start + 2)) >= 0:
        kept.append(text[begin:start])
        begin = end + 2
    return "".join([*kept, text[begin:]])


def _works(text: str) -> Iterator[tuple[str, str]]:
    """Yield (title, body) of each work: by the lines "by William Shakespeare", or by the titles in the contents."""
    starts = [(_title(text, match.start()), match.end()) for match in _BY.finditer(text)]
    contents = re.search(r"^[ \t]*Contents[ \t]*\n+((?:[ \t]*\S.*\n)+)", text, re.MULTILINE)
    if len(starts) <= 1 and contents is not None:
        listed = {line.strip() for line in contents[1].splitlines() if line.strip()}
        lines = re.finditer(r"^[^a-z\n]+$", text[contents.end() :], re.MULTILINE)
        starts = [(m[0].strip(), contents.end() + m.end()) for m in lines if m[0].strip() in listed]
    for (title, begin), (_, end) in pairwise([*starts, ("", len(text))]):
        yield title, text[begin:end]


def _title(text: str, end: int) -> str:
    """Return the title: the last lines before `end`, back to a year or a gap of blank lines."""
    lines: list[str] = []
    for line in reversed(text[max(0, end - 1000) : end].rstrip().splitlines()):
        if re.fullmatch(r"\s*\d{4}\s*", line) or (lines and not line.strip()):
            break
        lines.insert(0, line.strip())
    return " ".join(lines)


def _speeches(body: str) -> Iterator[tuple[str, str]]:
    body = _BRACKETS.sub(" ", body)
    lines = body.splitlines()
    layout = _layout(lines)
    speaker, before, stage = "", "", False
    speech: list[str] = []
    for line in lines:
        wrapped = stage and len(before.rstrip()) >= _WRAPPED and bool(line.strip())
        stage = _is_direction(line, before) or (wrapped and not _SPEAKER[layout].match(line))
        begins = None if stage else _SPEAKER[layout].match(line)
        if begins or _HEADING.match(line):  # the last speaker has finished
            yield speaker, _joined(speech)
            speaker, speech = "", []
        if begins:
            speaker = " ".join(begins[1].split())
            speech = [begins[2] or ""] if layout != "alone" else []
        elif speaker and not stage and (layout != "indented" or line.startswith("   ")):
            speech.append(line)
        before = line
    yield speaker, _joined(speech)


def _layout(lines: list[str]) -> str:
    """Return the layout that finds the most speeches by names that occur more than once."""

    def found(layout: str) -> int:
        names = Counter(match[1] for line in lines if (match := _SPEAKER[layout].match(line)))
        return sum(count for count in names.values() if count > 1)

    return max(_SPEAKER, key=found)


def _is_direction(line: str, before: str) -> bool:
    """Distinguish a stage direction from a line of verse that begins with the same word, such as "Enter the city"."""
    apart = not before.strip() or not line.startswith(" ") or line.startswith(" " * 8)
    if apart and (_DIRECTION.match(line) or re.search(r"\b(?:Enter|Exeunt)\b", line)):
        return True
    return bool(_HEADING.match(line)) or line.split() in (["Exit"], ["Exeunt"])


def _joined(lines: list[str]) -> str:
    return " ".join(" ".join(_TRAILING.sub("", line) for line in lines).split())
