"""The original files of data sets: their names, where to download them, and how to find them.

A data set needs one file for each of its `needs`. Several files may serve a need; the first that is found is used.
Files are searched for in the folders the user names (`--from DIR`: DIR, DIR/NAME and the need's own folder) and in
the folder where downloads are kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedprox.core.errors import DataError

__all__ = ["SOURCES", "File", "Need", "Source", "downloads", "find", "home", "population_path"]


@dataclass(frozen=True)
class File:
    """One file: its name, where it can be downloaded (mirrors in order), and how a download is checked.

    A gzipped file that was compressed again has another checksum; `content` is the checksum of the decompressed data.
    Where no checksum is known, `examine` reads the file and raises `DataError` unless it holds what it should.
    """

    name: str
    urls: tuple[str, ...] = ()
    sha256: str | None = None
    content: str | None = None
    examine: Callable[[Path], None] | None = None


@dataclass(frozen=True)
class Need:
    """A need of a data set, and the files that satisfy it, the best one first."""

    what: str
    files: tuple[File, ...]
    folder: str = ""  # also searched in DIR/folder
    pickled: tuple[str, ...] = ()  # the same data in files that are not read

    @property
    def download(self) -> File:
        """The file to download if none is found."""
        return next(file for file in self.files if file.urls)


@dataclass(frozen=True)
class Source:
    """A data set: what it needs, and whether it is pooled, without its own devices."""

    name: str
    title: str
    needs: tuple[Need, ...]
    pooled: bool = False


def _mnist(name: str, checksum: str) -> Need:
    mirrors = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
    return Need(name, (File(name, tuple(mirror + name for mirror in mirrors), checksum),))


def _fashion_mnist(name: str, checksum: str, content: str) -> Need:
    mirrors = (
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    )
    packed = File(name, tuple(mirror + name for mirror in mirrors), checksum, content)
    return Need(name, (packed, File(name.removesuffix(".gz"), sha256=content)), "fashion-mnist")


def _examine_edition(path: Path) -> None:
    from fedprox.data.shakespeare import check_edition

    check_edition(path)


SOURCES: Mapping[str, Source] = {
    source.name: source
    for source in (
        Source(
            "mnist",
            "handwritten digits, two per device",
            (
                _mnist(
                    "train-images-idx3-ubyte.gz", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
                ),
                _mnist(
                    "train-labels-idx1-ubyte.gz", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"
                ),
                _mnist("t10k-images-idx3-ubyte.gz", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
                _mnist("t10k-labels-idx1-ubyte.gz", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
            ),
        ),
        Source(
            "femnist",
            "handwritten letters a to j, five per device",
            (
                Need(
                    "EMNIST ByClass",
                    (
                        File(
                            "gzip.zip",
                            ("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
                            "fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",
                        ),
                        File("emnist_aj.npz"),
                    ),
                    "emnist",
                ),
            ),
        ),
        Source(
            "shakespeare",
            "the next character of a speaking role",
            (
                Need(
                    "the Complete Works of William Shakespeare",
                    (
                        File(
                            "1994-01-100.zip",
                            (
                                "https://www.gutenberg.org/files/100/old/old/1994-01-100.zip",
                                "https://www.gutenberg.org/files/100/old/1994-01-100.zip",
                            ),
                            examine=_examine_edition,
                        ),
                        File(
                            "t8.shakespeare.txt",
                            ("https://ocw.mit.edu/ans7870/6/6.006/s08/lecturenotes/files/t8.shakespeare.txt",),
                            examine=_examine_edition,
                        ),
                        File(
                            "pg100.txt",
                            ("https://www.gutenberg.org/cache/epub/100/pg100.txt",),
                            examine=_examine_edition,
                        ),
                        File("100-0.txt"),
                        File("leaf_roles_1994.json.gz"),
                        File("will_play_text.csv.bz2"),
                        File("t8.shakespeare.first54pct.txt.gz"),
                    ),
                ),
            ),
        ),
        Source(
            "sent140",
            "the sentiment of a tweet, one account per device",
            (
                Need(
                    "the tweets of Sentiment140",
                    (
                        File(
                            "trainingandtestdata.zip",
                            ("https://cs.stanford.edu/people/alecmgo/trainingandtestdata.zip",),
                            "004a3772c8a7ff9bbfeb875880f47f0679d93fc63e5cf9cff72d54a8a6162e57",
                        ),
                        File("training.1600000.processed.noemoticon.csv"),
                        File("sent140_partial.csv.gz"),
                    ),
                ),
                Need(
                    "GloVe word vectors",
                    (
                        File("glove.6B.300d.txt"),
                        File(
                            "glove.6B.zip",
                            (
                                "https://nlp.stanford.edu/data/glove.6B.zip",
                                "https://huggingface.co/stanfordnlp/glove/resolve/main/glove.6B.zip",
                            ),
                            "617afb2fe6cbd085c235baf7a465b96f4112bd7f7ccb2b2cbd649fed9cbcf2fb",
                        ),
                        File("glove6B_100d_f16.npz"),
                        File("glove6B_50d_f16.npz"),
                    ),
                    "glove",
                ),
            ),
        ),
        Source(
            "cifar10",
            "small colour images in ten classes",
            (
                Need(
                    "CIFAR-10",
                    (
                        File(
                            "cifar-10-binary.tar.gz",
                            ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
                            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                        ),
                        File("data_batch_1.bin"),
                        File("data_batch_1.bin.gz"),
                    ),
                    "cifar-10-batches-bin",
                    ("cifar-10-python.tar.gz", "data_batch_1", "cifar-10-batches-py"),
                ),
            ),
            pooled=True,
        ),
        Source(
            "fashion_mnist",
            "small grey images of clothes in ten classes",
            (
                _fashion_mnist(
                    "train-images-idx3-ubyte.gz",
                    "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                    "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                ),
                _fashion_mnist(
                    "train-labels-idx1-ubyte.gz",
                    "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                    "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                ),
                _fashion_mnist(
                    "t10k-images-idx3-ubyte.gz",
                    "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                    "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                ),
                _fashion_mnist(
                    "t10k-labels-idx1-ubyte.gz",
                    "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                    "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
                ),
            ),
            pooled=True,
        ),
    )
}


def home() -> Path:
    """Return the folder of prepared data and downloads: `$FEDPROX_DATA`, or the user's data folder."""
    if chosen := os.environ.get("FEDPROX_DATA"):
        return Path(chosen)
    import platformdirs

    return platformdirs.user_data_path("fedprox")


def downloads(name: str) -> Path:
    """Return the folder where the original files of a data set are kept."""
    return home() / "files" / name


def population_path(name: str, seed: int) -> Path:
    """Return the folder of a prepared population; pooled data has one for all seeds."""
    if name in SOURCES and SOURCES[name].pooled:
        seed = 0
    return home() / "populations" / f"{name}-{seed}"


def find(source: Source, folders: Sequence[Path], use: Sequence[str] = ()) -> dict[str, Path | None]:
    """Return the file for each need, or None.

    Args:
      folders: the folders given with `--from`.
      use: names or paths of files to use instead of the first that is found.
    """
    for folder in folders:
        if not folder.is_dir():
            raise DataError(f"`--from` must be a folder; got {folder}")
    served: dict[str, Path | None] = {}
    left = list(use)
    for need in source.needs:
        wanted = [name for name in left if Path(name).name in {file.name for file in need.files}]
        left = [name for name in left if name not in wanted]
        places = [place for folder in folders for place in _places(folder, source, need)]
        places += [downloads(source.name)]
        candidates = [Path(name) for name in wanted]
        names = [Path(name).name for name in wanted] or [file.name for file in need.files]
        candidates += [place / name for name in names for place in places]
        served[need.what] = next((path for path in candidates if path.is_file()), None)
        if wanted and served[need.what] is None:
            raise DataError(f"`--use` must name a file that exists; got {wanted[0]}")
    if left:
        known = ", ".join(file.name for need in source.needs for file in need.files)
        raise DataError(f"`--use` must name a file that {source.name} can use ({known}); got {left[0]}")
    return served


def _places(folder: Path, source: Source, need: Need) -> list[Path]:
    return [folder, folder / source.name] + ([folder / need.folder] if need.folder else [])
