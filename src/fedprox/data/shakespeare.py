"""Shakespeare: each speaking role is a device; from 80 characters the next one is predicted (Appendix C.1).

The speeches of a role form one text, with white space reduced to single spaces. Each window of 80 characters is an
example, the character after it the label; characters are numbered by their place in `ALPHABET`, the 80 that the edition
of 1994 has. Of a role's windows the last fifth are test windows, in the order of the text: a training window never
reaches the character that a test window predicts, as it would with a random choice among overlapping windows.

143 roles are drawn from all that have a window, as in the paper.
"""

from __future__ import annotations

import csv
import io
import json
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedprox.core.errors import DataError
from fedprox.core.randomness import Purpose, generator
from fedprox.data.checksums import digests
from fedprox.data.plays import parse_plays, role_name
from fedprox.data.table1 import PAPER, nearest_draw
from fedprox.data.text_files import read_text
from fedprox.population.writer import PopulationWriter

__all__ = ["ALPHABET", "WINDOW", "check_edition", "encode", "prepare", "read_roles", "windows"]

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
WINDOW = 80
_FEWEST_ROLES, _FEWEST_CHARACTERS = 500, 3_000_000  # of an edition; one of 36 plays has 1,294 and 4,201,869
_LONGEST_LINE = 1000

_CODES = np.full(128, ALPHABET.index(" "), np.uint8)
_CODES[[ord(letter) for letter in ALPHABET]] = np.arange(len(ALPHABET))
_PLAIN = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "æ": "ae", "Æ": "AE", "œ": "oe"})  # noqa: RUF001


def prepare(files: Mapping[str, Path], out: Path, seed: int = 0) -> None:
    """Write the population from an edition of the Complete Works to the folder `out`."""
    (file,) = files.values()
    texts = {name: encode(text) for name, text in sorted(read_roles(file).items())}
    names = [name for name, codes in texts.items() if len(codes) > WINDOW]
    sizes = np.array([len(texts[name]) - WINDOW for name in names])
    paper = PAPER["shakespeare"]
    devices = min(paper.devices, len(names))
    if devices == 0:
        raise DataError(f"{file} must hold a role that says more than {WINDOW} characters; found none")

    def chosen(attempt: int) -> NDArray[np.int64]:
        random = generator(seed, Purpose.PARTITION, round=attempt + 1)
        return np.sort(random.choice(len(names), devices, replace=False))

    attempt = nearest_draw(paper, lambda attempt: sizes[chosen(attempt)])
    about = {
        "data": "shakespeare",
        "seed": seed,
        "draw": attempt,
        "files": [file.name],
        "sha256": digests([file]),
        "roles": len(names),
    }
    with PopulationWriter(out, classes=len(ALPHABET), about=about) as writer:
        for index in chosen(attempt):
            x, y = windows(texts[names[index]])
            cut = len(y) - len(y) // 5
            writer.add(names[index], (x[:cut], y[:cut]), (x[cut:], y[cut:]))


def windows(codes: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Return every window (n, 80) of a text and the character after each.

    >>> x, y = windows(np.arange(82, dtype=np.uint8))
    >>> x.shape, x[1, 0], y.tolist()
    ((2, 80), np.uint8(1), [80, 81])
    """
    if len(codes) <= WINDOW:
        return np.zeros((0, WINDOW), np.uint8), np.zeros(0, np.int32)
    view = np.lib.stride_tricks.sliding_window_view(codes, WINDOW + 1)
    return view[:, :WINDOW], view[:, WINDOW].astype(np.int32)


def encode(text: str) -> NDArray[np.uint8]:
    """Return a text as codes: without accents, with plain marks, and with a space for any other character.

    >>> [ALPHABET[code] for code in encode("né—‘a")]
    ['n', 'e', '-', "'", 'a']
    """
    plain = unicodedata.normalize("NFKD", text.translate(_PLAIN))
    kept = "".join(letter for letter in plain if not unicodedata.combining(letter))
    return _CODES[np.frombuffer(kept.encode("ascii", "replace").replace(b"\x00", b" "), np.uint8)]


def check_edition(file: Path) -> None:
    """Refuse a download that is not an edition of all works: a web page, a single play, or a part that was cut off."""
    said = [len(text) for text in read_roles(file).values()]
    if len(said) < _FEWEST_ROLES or sum(said) < _FEWEST_CHARACTERS:
        raise DataError(
            f"{file} must be an edition of the Complete Works, with at least {_FEWEST_ROLES:,} roles that say "
            f"{_FEWEST_CHARACTERS:,} characters; got {len(said):,} and {sum(said):,}"
        )


def read_roles(file: Path) -> dict[str, str]:
    """Return what each role says, from the works as text, a table of lines (csv) or LEAF's roles (JSON)."""
    text = read_text(file)
    suffix = Path(file.name.removesuffix(".gz").removesuffix(".bz2")).suffix
    if suffix == ".json":
        return _from_json(file, text)
    if suffix == ".csv":
        return _collected(file, _from_csv(file, text))
    if (longest := max(map(len, text.splitlines()), default=0)) > _LONGEST_LINE:
        raise DataError(f"{file} must be printed plays, in lines of at most {_LONGEST_LINE:,} letters; got {longest:,}")
    return _collected(file, parse_plays(text))


def _collected(file: Path, speeches: Iterable[tuple[str, str, str]]) -> dict[str, str]:
    said: dict[str, list[str]] = defaultdict(list)
    for play, speaker, speech in speeches:
        said[role_name(play, speaker)].append(speech)
    if not said:
        raise DataError(f"{file} must hold plays with acts and speakers, as Project Gutenberg prints them; found none")
    return {name: " ".join(" ".join(parts).split()) for name, parts in said.items()}


def _from_json(file: Path, text: str) -> dict[str, str]:
    try:
        roles = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{file} is not valid JSON: {error.msg} at line {error.lineno}") from None
    if not isinstance(roles, dict) or not all(isinstance(said, str) for said in roles.values()):
        raise DataError(f"{file} must be one object of texts by role")
    return {name: " ".join(said.split()) for name, said in roles.items()}


def _from_csv(file: Path, text: str) -> Iterable[tuple[str, str, str]]:
    """Yield (play, speaker, text) from rows id;play;speech;line;speaker;text; rows without a line are directions."""
    for row, fields in enumerate(csv.reader(io.StringIO(text), delimiter=";"), start=1):
        if len(fields) != 6:
            raise DataError(
                f"{file} must have 6 fields in every row (id;play;speech;line;speaker;text); "
                f"row {row} has {len(fields)}"
            )
        _, play, _, line, speaker, said = fields
        if line and speaker:
            yield play, speaker, said
