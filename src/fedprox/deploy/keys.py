"""Certificates and keys for a federation: TLS for the server, and keys by which nodes prove their identity.

    ca.crt, ca.key        the authority that signs the server's certificate; ca.crt goes to every node
    server.pem, .key      the server's certificate for the names it is reached under, and its key
    nodeK, nodeK.pub      the key of each node, and its public half, which is registered with the server

Private keys are readable by their owner alone. They are made on one machine for convenience; in production a node makes
its own key and hands out the public half (`ssh-keygen -t ecdsa -b 384`), and ca.key is kept away from the server.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedprox.core.errors import ConfigError, short
from fedprox.core.extras import needs_extra
from fedprox.core.reading import reading

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

__all__ = ["write_keys"]

_MOST_DAYS, _MOST_NODES = 36500, 100_000
_HOST = re.compile(
    r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)*"
)


def write_keys(folder: Path, *, nodes: int, hosts: Sequence[str] = ("localhost", "127.0.0.1"), days: int = 365) -> None:
    """Write the certificates and keys of a federation into a new or empty folder.

    Args:
      nodes: how many nodes get a key.
      hosts: the names and addresses under which nodes reach the server.
      days: how long the certificates are valid.
    """
    with needs_extra("flower", "`fedprox deploy keys`"):  # Flower brings the package cryptography
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

    names = [_checked_host(host) for host in hosts]
    if not names:
        raise ConfigError("`--host` must name at least one host; got none")
    if not 1 <= days <= _MOST_DAYS:
        raise ConfigError(f"`--days` must be an integer from 1 to {_MOST_DAYS}; got {days}")
    if not 1 <= nodes <= _MOST_NODES:
        raise ConfigError(f"`--nodes` must be an integer from 1 to {_MOST_NODES}; got {nodes}")
    with reading(folder, "a folder for keys", error=ConfigError):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"the folder for keys must be empty or must not exist yet; got {folder}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise ConfigError(f"the folder for keys {folder} cannot be written: {error.strerror}") from None
    authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    ca, certificate = _certificates(authority, server, names, days)
    pem, none = serialization.Encoding.PEM, serialization.NoEncryption()
    for name, key in (("ca.key", authority), ("server.key", server)):
        _write_private(folder / name, key.private_bytes(pem, serialization.PrivateFormat.PKCS8, none))
    (folder / "ca.crt").write_bytes(ca.public_bytes(pem))
    (folder / "server.pem").write_bytes(certificate.public_bytes(pem))
    for number in range(nodes):
        node = ec.generate_private_key(ec.SECP384R1())
        _write_private(folder / f"node{number}", node.private_bytes(pem, serialization.PrivateFormat.OpenSSH, none))
        public = node.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        (folder / f"node{number}.pub").write_bytes(public + f" node{number}\n".encode())


def _certificates(
    authority: EllipticCurvePrivateKey, server: EllipticCurvePrivateKey, hosts: Sequence[str], days: int
) -> tuple[x509.Certificate, x509.Certificate]:
    """Return the authority's own certificate and the one it signs for the server."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    now = datetime.datetime.now(datetime.UTC)

    def unsigned(name: str, key: EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedprox authority")]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ
            .not_valid_after(now + datetime.timedelta(days=days))
        )

    usage = {
        "digital_signature": True,
        "content_commitment": False,
        "key_encipherment": False,
        "data_encipherment": False,
        "key_agreement": False,
        "encipher_only": False,
        "decipher_only": False,
    }
    identity = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    ca = (
        unsigned("fedprox authority", authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(key_cert_sign=True, crl_sign=True, **usage), critical=True)
        .add_extension(identity, critical=False)
        .sign(authority, hashes.SHA384())
    )
    certificate = (
        unsigned("fedprox server", server)  # names are in the extension, where they may be long
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(key_cert_sign=False, crl_sign=False, **usage), critical=True)
        .add_extension(x509.SubjectAlternativeName([_name(host) for host in hosts]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(server.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identity), critical=False)
        .sign(authority, hashes.SHA384())
    )
    return ca, certificate


def _checked_host(host: str) -> str:
    """Return a host name or address; a name in other letters becomes the form that certificates have (xn--...)."""
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(host))
    try:
        name = host.encode("idna").decode()
    except UnicodeError:
        name = ""
    if len(name) > 253 or not _HOST.fullmatch(name):
        raise ConfigError(f"`--host` must be a host name or an IP address; got {short(host)}")
    return name


def _name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_private(path: Path, content: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
