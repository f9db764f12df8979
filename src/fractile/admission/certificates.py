"""The webhook's own authority and serving certificate, and when to renew them. Pure except for generating keys.

The API server trusts the bundle in the webhook configurations. A new authority is therefore added to the bundle first,
and signs the serving certificate only after the configurations have contained it for a while (``published``):

    authority past 2/3 of its life ──> a new one at the front of the bundle, the old one stays until it expires
    ... published ──> a new serving certificate, signed by the first of the bundle
    certificate past 2/3 of its life, or for other names ──> the same

If nothing is usable (first start, damaged Secret, a clock that jumped years), everything is replaced immediately. A
clock that was set back makes certificates unusable too, since they are not valid yet; they are backdated by a day, so
that small jumps and an API server whose clock is slow do no harm. Only the key of the newest authority is kept.
"""

import ipaddress
from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_LIFE = timedelta(days=365)
SERVING_LIFE = timedelta(days=90)
BACKDATED = timedelta(days=1)
MOST_AUTHORITIES = 4  # in a bundle, however often the clock jumps

_PEM = serialization.Encoding.PEM


class Material(msgspec.Struct, frozen=True):
    """PEM texts: all authorities (the newest first), the key of the newest, and the serving pair; empty at first."""

    bundle: bytes = b""
    ca_key: bytes = b""
    cert: bytes = b""
    key: bytes = b""


class _Held(msgspec.Struct, frozen=True):
    """The valid parts of a ``Material``. ``ca_key`` is None when it is not that of the newest authority, ``serving``
    when certificate and key are not a pair."""

    authorities: tuple[x509.Certificate, ...]
    ca_key: ec.EllipticCurvePrivateKey | None
    serving: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None


def renewed(material: Material, names: Sequence[str], *, now: datetime, published: bool) -> Material:
    """The renewed material; the same when nothing is due. ``names``: DNS names or addresses of the serving certificate;
    ``now`` is timezone-aware."""
    held = _read(material)
    if not _signs(held, now):
        if _can_sign(held, now) and (not _serves(held, now) or _outdated(held, names, now)):
            held = _with_new_serving(held, names, now)  # the last by the old key: the new one is not trusted yet
        held = _with_new_authority(held, now)
        published = False
    living = tuple(a for a in held.authorities if a.not_valid_after_utc > now)
    held = msgspec.structs.replace(held, authorities=living[:MOST_AUTHORITIES])
    if not _serves(held, now) or (published and _outdated(held, names, now)):
        held = _with_new_serving(held, names, now)
    return _written(held)


def _signs(held: _Held, now: datetime) -> bool:
    """Whether the newest authority can sign and is not due for renewal."""
    return _can_sign(held, now) and not _due(held.authorities[0], now)


def _can_sign(held: _Held, now: datetime) -> bool:
    return held.ca_key is not None and bool(held.authorities) and _usable(held.authorities[0], now)


def _serves(held: _Held, now: datetime) -> bool:
    """Whether the serving certificate is valid for clients that trust the bundle."""
    return (
        held.serving is not None
        and _usable(held.serving[0], now)
        and any(_signed(held.serving[0], a) for a in held.authorities)
    )


def _outdated(held: _Held, names: Sequence[str], now: datetime) -> bool:
    assert held.serving is not None
    cert = held.serving[0]
    return _due(cert, now) or _names(cert) != list(names) or not _signed(cert, held.authorities[0])


def _read(material: Material) -> _Held:
    try:
        authorities = tuple(x509.load_pem_x509_certificates(material.bundle))
    except ValueError:
        authorities = ()
    ca_key = _key(material.ca_key)
    own = ca_key is not None and bool(authorities) and ca_key.public_key() == authorities[0].public_key()
    return _Held(authorities, ca_key if own else None, _serving(material))


def _serving(material: Material) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None:
    key = _key(material.key)
    try:
        cert = x509.load_pem_x509_certificate(material.cert)
    except ValueError:
        return None
    return None if key is None or key.public_key() != cert.public_key() else (cert, key)


def _key(pem: bytes) -> ec.EllipticCurvePrivateKey | None:
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
    return key if isinstance(key, ec.EllipticCurvePrivateKey) else None


def _written(held: _Held) -> Material:
    assert held.serving is not None
    assert held.ca_key is not None
    cert, key = held.serving
    bundle = b"".join(c.public_bytes(_PEM) for c in held.authorities)
    return Material(bundle, _pem_key(held.ca_key), cert.public_bytes(_PEM), _pem_key(key))


def _usable(cert: x509.Certificate, now: datetime) -> bool:
    return cert.not_valid_before_utc <= now < cert.not_valid_after_utc


def _due(cert: x509.Certificate, now: datetime) -> bool:
    return now >= _due_at(cert)


def _due_at(cert: x509.Certificate) -> datetime:
    begin = cert.not_valid_before_utc
    return begin + (cert.not_valid_after_utc - begin) * 2 / 3


def _signed(cert: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        cert.verify_directly_issued_by(authority)
    except Exception:  # cryptography raises various errors
        return False
    return True


def _with_new_authority(held: _Held, now: datetime) -> _Held:
    key = ec.generate_private_key(ec.SECP256R1())
    # If authorities with different keys shared a name, the API server would try the wrong one first.
    subject = _subject(f"fractile webhook {now:%Y-%m-%dT%H:%M:%SZ} {x509.random_serial_number() % 2**32:08x}")
    cert = (
        _builder(subject, subject, key.public_key(), now, CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_ca_usage(), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _Held((cert, *held.authorities), key, held.serving)


def _with_new_serving(held: _Held, names: Sequence[str], now: datetime) -> _Held:
    assert held.ca_key is not None
    key = ec.generate_private_key(ec.SECP256R1())
    authority = held.authorities[0]
    life = min(SERVING_LIFE, authority.not_valid_after_utc - now)
    cert = (
        _builder(_subject("fractile webhook"), authority.subject, key.public_key(), now, life)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(held.ca_key.public_key()), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
        .sign(held.ca_key, hashes.SHA256())
    )
    return msgspec.structs.replace(held, serving=(cert, key))


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + life)
    )


def _ca_usage() -> x509.KeyUsage:
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    off = dict.fromkeys((*others, "encipher_only", "decipher_only"), False)
    return x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, **off)


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _names(cert: x509.Certificate) -> list[str]:
    try:
        found = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return []
    return [str(name.value) for name in found]


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
