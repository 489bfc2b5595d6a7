"""Downloads from a server of our own, over https with a certificate of our own."""

import hashlib
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from fedprox.core.errors import DataError
from fedprox.data.checksums import sha256
from fedprox.data.fetch import fetch
from fedprox.data.sources import SOURCES, File, Need, Source
from shared_data import FOLDER, real

CONTENT = bytes(range(256)) * 4_000
DIGEST = hashlib.sha256(CONTENT).hexdigest()
PAGE = b"<!DOCTYPE html><title>Sorry</title>"


class Server(ThreadingHTTPServer):
    """Serves `content` with ranges; what it is asked for is in `asked`.

    /breaks hangs up after half, /gone has nothing, /page says that all is well and sends a web page, /away leads to
    plain http, /liar sends another part than it was asked for.
    """

    content, version, breaks = CONTENT, '"1"', False
    elsewhere = ""
    plain: "Server"

    def __init__(self, plain=False):
        self.asked = []
        super().__init__(("127.0.0.1", 0), Handler)
        self.address = f"{'http' if plain else 'https'}://127.0.0.1:{self.server_port}"
        self.thread = threading.Thread(target=self.serve_forever)

    def handle_error(self, request, client_address):
        pass


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server: Any = self.server
        begin = int(self.headers.get("Range", "bytes=0-")[6:-1])
        if self.headers.get("If-Range", server.version) != server.version:
            begin = 0
        server.asked.append((self.path, begin))
        content = PAGE if self.path == "/page" else server.content
        if self.path == "/gone":
            self.send_error(404)
            return
        if self.path == "/away":
            self.send_response(302)
            self.send_header("Location", server.elsewhere)
            self.end_headers()
            return
        if self.path == "/liar" and begin:
            begin = 7
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(content) - begin))
        if server.version:
            self.send_header("ETag", server.version)
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        body = content[begin:]
        self.wfile.write(body[: len(body) // 2] if self.path == "/breaks" or server.breaks else body)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    pytest.importorskip("cryptography")
    from fedprox.deploy.keys import write_keys

    folder = tmp_path_factory.mktemp("keys") / "keys"
    write_keys(folder, nodes=1)
    return folder


@pytest.fixture
def server(keys, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPROX_DATA", str(tmp_path))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(keys / "ca.crt"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / "server.pem", keys / "server.key")
    secure, plain = Server(), Server(plain=True)
    secure.socket = context.wrap_socket(secure.socket, server_side=True)
    secure.elsewhere, secure.plain = f"{plain.address}/whole", plain
    for each in (secure, plain):
        each.thread.start()
    yield secure
    for each in (secure, plain):
        each.shutdown()
        each.thread.join()
        each.server_close()


def source(*urls, sha256=DIGEST, examine=None):
    return Source("toy", "", (Need("the toy", (File("toy.bin", urls, sha256, examine=examine),)),))


def kept(tmp_path):
    return sorted(path.name for path in (tmp_path / "files" / "toy").rglob("*") if path.is_file())


def must_be_content(path):
    if path.read_bytes() != CONTENT:
        raise DataError(f"{path.name} must be the toy")


def test_a_mirror_takes_over(server, tmp_path):
    told = []
    urls = [f"{server.address}/{path}" for path in ("gone", "breaks", "page", "whole")]
    files = fetch(source(*urls), progress=lambda *args: told.append(args))
    assert files["the toy"].read_bytes() == CONTENT
    assert server.asked == [("/gone", 0), ("/breaks", 0), ("/page", 0), ("/whole", 0)]
    assert told[-1] == ("toy.bin", len(CONTENT), len(CONTENT))
    assert kept(tmp_path) == ["toy.bin"]
    fetch(source(*urls))
    assert len(server.asked) == 4  # found, not asked for again


def test_a_download_that_broke_off_goes_on(server, tmp_path):
    server.breaks = True
    with pytest.raises(DataError, match=r"the connection ended|ChunkedEncodingError|ConnectionError|ProtocolError"):
        fetch(source(f"{server.address}/whole"))
    assert kept(tmp_path) == ["toy.bin", "toy.bin.json"]
    server.breaks = False
    assert fetch(source(f"{server.address}/whole"))["the toy"].read_bytes() == CONTENT
    assert 0 < server.asked[-1][1] <= len(CONTENT) // 2
    assert kept(tmp_path) == ["toy.bin"]


@pytest.mark.parametrize("change", ["version", "no version", "address", "no note", "liar"])
def test_a_stale_part_is_not_continued_into_another_file(server, tmp_path, change):
    server.breaks, path = True, "liar" if change == "liar" else "whole"
    server.version = "" if change == "no version" else server.version
    with pytest.raises(DataError):
        fetch(source(f"{server.address}/{path}", sha256=None, examine=lambda path: None))
    server.breaks, server.content = False, CONTENT[::-1]
    if change == "version":
        server.version = '"2"'
    elif change == "address":
        path = "moved"
    elif change == "no note":
        (tmp_path / "files" / "toy" / "partial" / "toy.bin.json").unlink()
    toy = source(f"{server.address}/{path}", sha256=None, examine=lambda path: None)
    if change == "liar":
        with pytest.raises(DataError, match="another part of the file"):
            fetch(toy)
    else:
        assert fetch(toy)["the toy"].read_bytes() == CONTENT[::-1]
        assert server.asked[-1][1] == 0


def test_foreign_bytes_are_never_stored(server, tmp_path):
    with pytest.raises(DataError, match=r"must have the SHA-256 .*--from"):
        fetch(source(f"{server.address}/page"))
    with pytest.raises(DataError, match=r"toy.bin must be the toy"):
        fetch(source(f"{server.address}/page", sha256=None, examine=must_be_content))
    with pytest.raises(DataError, match="neither a known checksum nor a check"):
        fetch(source(f"{server.address}/whole", sha256=None))
    assert kept(tmp_path) == []


def test_a_data_folder_that_cannot_be_written_is_named_before_an_address_is_asked(server, tmp_path):
    (tmp_path / "files").write_text("a file")
    with pytest.raises(DataError) as caught:
        fetch(source(f"{server.address}/whole"))
    folder = tmp_path / "files" / "toy"
    assert str(caught.value) == f"{folder} cannot be written: Not a directory; set FEDPROX_DATA to a writable folder"
    assert server.asked == []


def test_only_https(server, tmp_path):
    with pytest.raises(DataError, match="downloads must use https"):
        fetch(source(f"{server.plain.address}/whole"))
    with pytest.raises(DataError, match=r"away \(InvalidSchema\)"):
        fetch(source(f"{server.address}/away"))
    assert server.plain.asked == []
    assert kept(tmp_path) == []


def test_an_unknown_certificate_is_refused(server, tmp_path, monkeypatch):
    monkeypatch.delenv("REQUESTS_CA_BUNDLE")
    with pytest.raises(DataError, match="SSLError"):
        fetch(source(f"{server.address}/whole"))
    assert kept(tmp_path) == []


def test_the_digest_of_a_file_without_checksum_is_recorded_and_compared(server, tmp_path):
    toy = source(f"{server.address}/whole", sha256=None, examine=must_be_content)
    path = fetch(toy)["the toy"]
    assert (path.parent / "checksums.txt").read_text() == f"{DIGEST}  toy.bin\n"
    fetch(toy)
    path.write_bytes(CONTENT[1:])
    with pytest.raises(DataError, match="it has changed since it was downloaded"):
        fetch(toy)


def test_a_wrong_file_of_the_user_is_refused(tmp_path):
    (tmp_path / "toy.bin").write_bytes(b"cut off")
    with pytest.raises(DataError, match=rf"toy.bin must have the SHA-256 {DIGEST}; got"):
        fetch(source(), [tmp_path])


def test_every_download_is_https_and_checked():
    for named in SOURCES.values():
        for need in named.needs:
            for file in need.files:
                assert all(url.startswith("https://") for url in file.urls)
                assert not file.urls or file.sha256 or file.examine


def test_the_real_files_pass():
    part, whole = real("shakespeare/t8.shakespeare.first54pct.txt.gz"), real("shakespeare/will_play_text.csv.bz2")
    assert len(fetch(SOURCES["mnist"], [FOLDER])) == 4
    with pytest.raises(DataError, match=r"must be an edition of the Complete Works.* got 756 and 2,239,993"):
        SOURCES["shakespeare"].needs[0].download.examine(part)
    SOURCES["shakespeare"].needs[0].download.examine(whole)


def test_the_digest_is_shown_and_kept_with_the_population(tmp_path, monkeypatch):
    import json

    import numpy as np
    from typer.testing import CliRunner

    from fedprox.cli import app

    monkeypatch.setenv("FEDPROX_DATA", str(tmp_path / "home"))
    file = tmp_path / "emnist_aj.npz"
    np.savez(file, images=np.zeros((600, 28, 28), np.uint8), labels=np.arange(600) % 10)
    shown = CliRunner().invoke(app, ["data", "fetch", "femnist", "--from", str(tmp_path)])
    assert shown.stdout == f"{sha256(file)}  {file}\n"
    result = CliRunner().invoke(app, ["data", "prepare", "femnist", "--from", str(tmp_path), "--json"])
    assert json.loads(result.stdout)["about"]["sha256"] == {"emnist_aj.npz": sha256(file)}
