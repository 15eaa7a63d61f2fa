"""The token and the certificates that the nodes of a cluster know each other by.

Ray runs what anyone who reaches it asks for. So beyond this machine every connection of a cluster is
encrypted, both sides show certificates of the cluster's own authority, and Ray asks for a token besides.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from puna.errors import PunaError
from puna.hosts import Host
from puna.runner.tls import uses_tls

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, GeneralName

#: How long certificates are valid.
VALID_DAYS: Final = 3650

_TOKEN, _CA, _CA_KEY, _CERT, _KEY = "token", "ca.pem", "ca-key.pem", "cert.pem", "key.pem"


#: Ray's variables for them, which may be set already, as in a cluster that others run.
_VARIABLES: Final = (
    "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_USE_TLS",
    "RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT",
)  # fmt: skip


def protection(host: str, folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return Ray's variables for a node at `host`: those in `environment`, else for the files in `folder`.

    On loopback a missing token is made, since other users of the machine reach it too. Raises PunaError if
    other machines could reach it without a token or without TLS.
    """
    given = {name: environment[name] for name in _VARIABLES if environment.get(name)}
    if given:
        found = given
    else:
        found = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(folder / _TOKEN)}
        if all((folder / name).is_file() for name in (_TOKEN, _CA, _CERT, _KEY)):
            found |= {
                "RAY_USE_TLS": "1",
                "RAY_TLS_SERVER_CERT": str(folder / _CERT),
                "RAY_TLS_SERVER_KEY": str(folder / _KEY),
                "RAY_TLS_CA_CERT": str(folder / _CA),
            }
    if not Host(address=host).is_loopback and not (found.get("RAY_AUTH_MODE") == "token" and uses_tls(found)):
        raise PunaError(
            f"a cluster at {host} would run whatever anyone sends who reaches it: make a token and "
            "certificates with `puna cluster init ADDRESS...`, and copy the folder to all nodes"
        )
    if not given and not (folder / _TOKEN).exists():
        _make(folder, lambda: _write(folder / _TOKEN, secrets.token_hex(32).encode()))
    return found


def check_privacy(address: str, *, encrypted: bool) -> None:
    """Raise PunaError for a node beyond this machine whose connections would not be encrypted."""
    if not (encrypted or Host(address=address).is_loopback):
        raise PunaError(
            f"connections with a node at {address} would not be encrypted: start Ray with RAY_USE_TLS=1 and "
            "the certificates of `puna cluster init ADDRESS...`"
        )


def init(folder: Path, addresses: Sequence[str]) -> list[Path]:
    """Make a token, an authority and a certificate for nodes at `addresses`; return the files written.

    A token and an authority that are there stay, so that nodes can be added. Raises PunaError.
    """
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509 import load_pem_x509_certificate

    files: dict[str, bytes] = {}

    def make() -> None:
        if not (folder / _TOKEN).exists():
            files[_TOKEN] = secrets.token_hex(32).encode()
        if (folder / _CA_KEY).exists():
            authority = load_pem_x509_certificate((folder / _CA).read_bytes())
            key = _elliptic(load_pem_private_key((folder / _CA_KEY).read_bytes(), None))
        else:
            authority, key = _certificate("Puna cluster", [], None)
            files[_CA], files[_CA_KEY] = _pem(authority), _key_pem(key)
        names = [_name(each) for each in dict.fromkeys(["localhost", "127.0.0.1", *addresses])]
        mine, mine_key = _certificate("Puna node", names, (authority, key))
        files[_CERT], files[_KEY] = _pem(mine), _key_pem(mine_key)
        for name, data in files.items():
            _write(folder / name, data)

    _make(folder, make)
    return [folder / name for name in files]


def _make(folder: Path, make: Callable[[], None]) -> None:
    """Call `make`, which writes into `folder`. Raises PunaError."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        make()
    except (OSError, ValueError) as error:
        raise PunaError(f"cannot make the cluster's token and certificates in {folder}: {error}") from error


def _write(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def _elliptic(key: object) -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    if not isinstance(key, EllipticCurvePrivateKey):
        raise ValueError("the authority's key is of another kind")
    return key


def _name(address: str) -> GeneralName:
    from cryptography.x509 import DNSName, IPAddress

    try:
        return IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return DNSName(address)


def _certificate(
    title: str, names: Sequence[GeneralName], signer: tuple[Certificate, EllipticCurvePrivateKey] | None
) -> tuple[Certificate, EllipticCurvePrivateKey]:
    """Return a certificate for `names` with its key, signed by `signer`, or an authority's own."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, title)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(signer[0].subject if signer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        .add_extension(x509.BasicConstraints(ca=signer is None, path_length=None), critical=True)
    )
    if signer is not None:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(signer[1] if signer else key, hashes.SHA256()), key


def _pem(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _key_pem(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
