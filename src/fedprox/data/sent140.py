"""Sent140: each account is a device; the sentiment of a tweet is predicted from its words (Appendix C.1).

A tweet is cut into words and marks in lower case, contractions as GloVe has them ("do", "n't"); the first 25 count,
and shorter tweets are filled up at the end with word 0. Label 1 is positive. Words are numbers of the fixed vectors
that are stored beside the data as `vectors`.

The paper keeps accounts with at least 30 tweets and has 772 of them. If the file has fewer such accounts, groups of
complete accounts stand in for them. A device's size is drawn as 30 plus a lognormal number, so that mean and deviation
are the paper's, and there are as many devices as the tweets fill. How positive a device is, is drawn uniformly from [0,
1]: its deviation 0.29 is about that between accounts (0.27 among those with 5 tweets or more).
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from fedprox.core.errors import DataError
from fedprox.core.randomness import Purpose, generator
from fedprox.data.checksums import digests
from fedprox.data.table1 import PAPER, nearest_draw
from fedprox.data.text_files import open_bytes
from fedprox.data.word_vectors import PADDING, UNKNOWN, read_vectors
from fedprox.population import split
from fedprox.population.writer import PopulationWriter

__all__ = ["TOKENS", "Tweet", "prepare", "read_tweets", "tokens"]

TOKENS, FEWEST = 25, 30
_WORD = re.compile(r"\w+(?=n't)|n't|'(?:s|m|re|ve|ll|d)\b|\w+|[.,!?;]")
_LABELS = {"0": 0, "4": 1}
_FIELDS = 6  # polarity, id, date, query, user, text


@dataclass(frozen=True)
class Tweet:
    """One row of the file."""

    account: str
    words: list[str]
    label: int


def prepare(files: Mapping[str, Path], out: Path, seed: int = 0) -> None:
    """Write the population from the tweets and the word vectors (in this order) to the folder `out`."""
    tweet_file, vector_file = files.values()
    accounts: dict[str, list[Tweet]] = {}
    for tweet in read_tweets(tweet_file):
        accounts.setdefault(tweet.account, []).append(tweet)
    devices, about = _devices(accounts, seed)
    numbers, vectors = read_vectors(
        vector_file, {word for tweets in devices.values() for tweet in tweets for word in tweet.words}
    )
    about |= {
        "data": "sent140",
        "seed": seed,
        "files": [tweet_file.name, vector_file.name],
        "sha256": digests(files.values()),
        "vectors": f"{vector_file.name}, {vectors.shape[1]} dimensions, {len(numbers)} words",
    }
    offsets = np.cumsum([0, *map(len, devices.values())])
    is_test = split(offsets, seed)
    with PopulationWriter(out, classes=2, extras={"vectors": vectors}, about=about) as writer:
        for device, (name, tweets) in enumerate(devices.items()):
            x, y = _rows(tweets, numbers)
            test = is_test[offsets[device] : offsets[device + 1]]
            writer.add(name, (x[~test], y[~test]), (x[test], y[test]))


def tokens(text: str) -> list[str]:
    """Return the first 25 words and marks of a tweet.

    >>> tokens("Don't go, PLEASE :(")
    ['do', "n't", 'go', ',', 'please']
    """
    return _WORD.findall(text.lower())[:TOKENS]


def read_tweets(file: Path) -> Iterator[Tweet]:
    """Yield the tweets of a file in Sentiment140's form; neutral ones (polarity 2) are skipped.

    The original file is Latin-1; a line that is UTF-8 is read as such.
    """
    with open_bytes(file, "training.1600000.processed.noemoticon.csv") as lines:
        for row, fields in enumerate(csv.reader(_decoded(lines)), start=1):
            if len(fields) != _FIELDS:
                raise DataError(
                    f"{file} must have {_FIELDS} fields in every row (polarity to text); row {row} has {len(fields)}"
                )
            if fields[0] == "2":
                continue
            if fields[0] not in _LABELS:
                raise DataError(f"{file} must have polarity 0, 2 or 4 in every row; row {row} has {fields[0]!r}")
            yield Tweet(fields[4], tokens(fields[5]), _LABELS[fields[0]])


def _decoded(lines: IO[bytes]) -> Iterator[str]:
    for line in lines:
        try:
            yield line.decode()
        except UnicodeDecodeError:
            yield line.decode("latin-1")


def _devices(accounts: dict[str, list[Tweet]], seed: int) -> tuple[dict[str, list[Tweet]], dict[str, object]]:
    """Return the tweets of each device, and how devices were made."""
    paper = PAPER["sent140"]
    large = [name for name, tweets in accounts.items() if len(tweets) >= FEWEST]
    if len(large) < paper.devices:
        return _groups(accounts, seed), {
            "devices": f"groups of accounts, since only {len(large)} accounts have {FEWEST} tweets or more"
        }
    sizes = np.array([len(accounts[name]) for name in large])

    def chosen(attempt: int) -> NDArray[np.int64]:
        return np.sort(
            generator(seed, Purpose.PARTITION, round=attempt + 1).choice(len(large), paper.devices, replace=False)
        )

    attempt = nearest_draw(paper, lambda attempt: sizes[chosen(attempt)])
    return {large[i]: accounts[large[i]] for i in chosen(attempt)}, {
        "devices": f"{paper.devices} of {len(large)} accounts with {FEWEST} tweets or more",
        "draw": attempt,
    }


def _groups(accounts: dict[str, list[Tweet]], seed: int) -> dict[str, list[Tweet]]:
    """Combine accounts until each device has the size drawn for it; the last device takes the rest."""
    paper = PAPER["sent140"]
    total = sum(map(len, accounts.values()))
    count = max(1, min(paper.devices, round(total / paper.mean)))
    more = paper.mean - FEWEST
    spread = math.log(1 + (paper.deviation / more) ** 2)  # of a lognormal number with this mean and deviation

    def sizes(attempt: int) -> NDArray[np.int64]:
        random = generator(seed, Purpose.PARTITION, round=attempt + 1)
        return FEWEST + random.lognormal(math.log(more) - spread / 2, math.sqrt(spread), count).astype(np.int64)

    random = generator(seed, Purpose.PARTITION)
    every = list(accounts.values())
    order = [every[i] for i in random.permutation(len(every))]
    waiting = {label: [tweets for tweets in order if tweets[0].label == label] for label in _LABELS.values()}
    groups: dict[str, list[Tweet]] = {}
    for size in sizes(nearest_draw(paper, sizes)):
        group: list[Tweet] = []
        positive = random.random()
        while len(group) < size and any(waiting.values()):
            label = int(random.random() < positive)
            group += (waiting[label] or waiting[1 - label]).pop()
        if group:
            groups[f"group-{len(groups)}"] = group
    for tweets in (*waiting[0], *waiting[1]):
        groups[f"group-{len(groups) - 1}"] += tweets
    return groups


def _rows(tweets: list[Tweet], numbers: Mapping[str, int]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    x = np.full((len(tweets), TOKENS), PADDING, np.int32)
    for row, tweet in enumerate(tweets):
        x[row, : len(tweet.words)] = [numbers.get(word, UNKNOWN) for word in tweet.words]
    return x, np.array([tweet.label for tweet in tweets], np.int32)
