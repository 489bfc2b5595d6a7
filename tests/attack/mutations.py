"""Ways to damage bytes and settings, drawn with a seed."""

from __future__ import annotations

import random
from typing import Any

__all__ = ["NASTY", "damaged", "nasty_settings"]

NASTY: tuple[Any, ...] = (
    0, -1, 1, 2, 2**24 + 1, 2**31 - 1, 2**31, 2**62, 2**63, 10**9, 10**30, -0.0, 0.0, 1e-320, 1e30, 1e300, -1e300,
    float("nan"), float("inf"), "", "x", "x" * 5000, "\ud800", "nul\0", "[/b]", "../..", "a:b", True, False, None, [],
    [[]], {}, {"a": {"a": 1}}, [1, "a", None],
)  # fmt: skip
_PIECES = (
    b"\0" * 64,
    b"\xff" * 64,
    b"{" * 200,
    b"[" * 5000,
    b"9" * 500,
    b"NaN",
    b"-0.0",
    b"1e999",
    b"\xed\xa0\x80",
    b"\n\n",
)


def damaged(content: bytes, dice: random.Random) -> bytes:
    """Return bytes with a few flips, cuts, copies, insertions or replacements."""
    data = bytearray(content)
    for _ in range(dice.choice((1, 1, 1, 2, 4, 16))):
        at = dice.randrange(len(data) + 1)
        length = dice.choice((1, 1, 2, 8, 64, 512))
        kind = dice.randrange(7)
        if kind <= 1 and at < len(data):
            data[at] ^= 1 << dice.randrange(8)
        elif kind == 2:
            del data[at : at + length]
        elif kind == 3:
            data[at:at] = dice.choice(_PIECES)
        elif kind == 4:
            data[at:at] = data[at : at + length]
        elif kind == 5:
            data[at : at + length] = dice.randbytes(length)
        else:
            del data[at:]
    return bytes(data)


def nasty_settings(settings: dict[str, Any], dice: random.Random) -> dict[str, Any]:
    """Return nested settings with one to three values replaced by values that no one would give."""
    result = {key: dict(value) if isinstance(value, dict) else value for key, value in settings.items()}
    for _ in range(dice.choice((1, 1, 2, 3))):
        section = dice.choice(list(result))
        inner = result[section]
        if isinstance(inner, dict) and inner and dice.random() < 0.95:
            inner[dice.choice(list(inner))] = dice.choice(NASTY)
        else:
            result[section] = dice.choice(NASTY)
    return result
