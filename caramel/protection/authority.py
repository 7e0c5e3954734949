"""An authority (CA) and the certificates that it signs; without files."""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_AUTHORITY_DAYS = 3650
_CLOCKS_DIFFER = timedelta(hours=1)  # a host whose clock is behind accepts a new certificate
_MOST_OF_A_NAME = 64  # in the subject; all of it is among the alternative names


@dataclass(frozen=True, slots=True)
class Signed:
    """A certificate.

    Attributes:
        text, key: both as PEM.
        serial: its serial number.
        until: the last day of its validity.
    """

    text: str
    key: str
    serial: int
    until: date


class Authority:
    """Signs the certificates of hosts.

    Args:
        certificate, key: its own.
    """

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate, self._key = certificate, key

    @classmethod
    def new(cls) -> Authority:
        """One that nobody knows yet."""
        key = ec.generate_private_key(ec.SECP256R1())
        # Else two authorities would have the same name.
        name = _subject(f"Caramel cluster {secrets.token_hex(8)}")
        certificate = (
            _builder(key, name, name, _AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key)

    @classmethod
    def read(cls, text: str, key: str) -> Authority:
        """One that was made before, from its certificate and its key as PEM.

        Raises:
            ValueError: they are not what `new` makes.
        """
        private = serialization.load_pem_private_key(key.encode(), None)
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise ValueError("the key is of another kind")
        return cls(x509.load_pem_x509_certificate(text.encode()), private)

    @property
    def text(self) -> str:
        """Its certificate, as PEM."""
        return _text(self._certificate)

    @property
    def key(self) -> str:
        """Its key, as PEM."""
        return _key_text(self._key)

    def certify(self, names: Sequence[str], days: float) -> Signed:
        """A certificate for a host, to connect and to be connected to.

        Args:
            names: its names and addresses.
            days: how long it is valid, from an hour ago.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject(names[0][:_MOST_OF_A_NAME])
        purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        alternatives = x509.SubjectAlternativeName([_alternative(name) for name in names])
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            _builder(key, subject, self._certificate.subject, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(alternatives, critical=False)
            .add_extension(signer, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        until = certificate.not_valid_after_utc.date()
        return Signed(_text(certificate), _key_text(key), certificate.serial_number, until)


def _builder(
    key: ec.EllipticCurvePrivateKey, subject: x509.Name, issuer: x509.Name, days: float
) -> x509.CertificateBuilder:
    """What all certificates have."""
    now = datetime.now(timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _text(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_text(key: ec.EllipticCurvePrivateKey) -> str:
    none = serialization.NoEncryption()
    kind = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, kind, none).decode()
