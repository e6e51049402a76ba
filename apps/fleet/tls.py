"""Keys of one run, so that only its own scheduler, workers and client talk to one another."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_EVER = (datetime(1970, 1, 2, tzinfo=UTC), datetime(1970, 1, 2, tzinfo=UTC) + timedelta(200 * 365))
"""A board without a clock of its own thinks it is 1970. The keys live in memory, for one run."""


def make_keys() -> dict[str, str]:
    """Returns ``cert`` and ``key`` as PEM texts, self-signed, in no file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "edgedec-fleet")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_EVER[0])
        .not_valid_after(_EVER[1])
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {"cert": certificate.public_bytes(pem).decode(), "key": private.decode()}
