"""The certificates of a local cluster, by which its programs identify each other.

There are two authorities, because etcd trusts every certificate of its authority and must not trust a kubelet. Existing
certificates are kept, so a restarted cluster has the same identities. They last ten years, longer than any local
cluster.
"""

import ipaddress
import json
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fractile.lab.layout import ClusterLayout

_LIFETIME = timedelta(days=3650)
_TOKEN = 32  # bytes
_SKEW = timedelta(hours=1)
_USAGES = (ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH)


class Identity(msgspec.Struct, frozen=True):
    """The subject of a certificate: a name, its groups (organisations), and the addresses that it may serve."""

    common_name: str
    groups: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()


class KeyPair(msgspec.Struct, frozen=True):
    """The paths of a certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """A certificate authority of the cluster; created if it does not exist."""

    def __init__(self, place: ClusterLayout, name: str, *, now: datetime) -> None:
        self._place = place
        self._now = now
        self._folder = place.pki / name
        self.ca = self._folder / "ca.crt"
        self._ca_key = self._folder / "ca.key"
        if not (self.ca.exists() and self._ca_key.exists()):
            self._create(f"fractile {place.name} {name}")
        self._cert = x509.load_pem_x509_certificate(self.ca.read_bytes())
        self._key = load_key(self._ca_key)

    def issue(self, file: str, identity: Identity) -> KeyPair:
        """The certificate of ``identity`` in ``file``; issued if it does not exist or has another identity."""
        pair = KeyPair(self._folder / f"{file}.crt", self._folder / f"{file}.key")
        if pair.cert.exists() and pair.key.exists() and self._fits(pair.cert, identity):
            return pair
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(_name(identity), key.public_key(), self._cert.subject)
        builder = builder.add_extension(x509.ExtendedKeyUsage(_USAGES), critical=False)
        if identity.addresses:
            builder = builder.add_extension(x509.SubjectAlternativeName(_names(identity)), critical=False)
        self._place.write(pair.key, _pem(key))
        self._place.write(pair.cert, builder.sign(self._key, hashes.SHA256()).public_bytes(_PEM))
        return pair

    def _create(self, common_name: str) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(Identity(common_name))
        builder = self._builder(subject, key.public_key(), subject)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self._place.write(self._ca_key, _pem(key))
        self._place.write(self.ca, builder.sign(key, hashes.SHA256()).public_bytes(_PEM))

    def _builder(
        self, subject: x509.Name, public_key: ec.EllipticCurvePublicKey, issuer: x509.Name
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - _SKEW)
            .not_valid_after(self._now + _LIFETIME)
        )

    def _fits(self, path: Path, identity: Identity) -> bool:
        cert = x509.load_pem_x509_certificate(path.read_bytes())
        if cert.issuer != self._cert.subject or cert.subject != _name(identity):
            return False
        try:
            cert.verify_directly_issued_by(self._cert)
            names = list(cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
        except x509.ExtensionNotFound:
            names = []
        except Exception:  # not signed by this authority; cryptography has several exceptions for that
            return False
        return names == _names(identity)


_PEM = serialization.Encoding.PEM


def signing_key(place: ClusterLayout, name: str) -> Path:
    """A private key for service account tokens; created if it does not exist."""
    path = place.pki / f"{name}.key"
    if not path.exists():
        place.write(path, _pem(ec.generate_private_key(ec.SECP256R1())))
    return path


def debug_token(place: ClusterLayout) -> Path:
    """The token for /debug/state of the control plane; created if it does not exist."""
    if not place.debug_token.exists():
        place.write(place.debug_token, secrets.token_urlsafe(_TOKEN))
    return place.debug_token


def load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def kubeconfig(*, server: str, ca: Path, pair: KeyPair, cluster: str) -> str:
    """A kubeconfig that names files instead of including them: the files exist as long as the cluster.

    It is JSON, which is also YAML: the agent reads it without PyYAML, which would take 4 MB of memory.
    """
    context = f"fractile-{cluster}"
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": context,
            "clusters": [{"name": context, "cluster": {"server": server, "certificate-authority": str(ca)}}],
            "users": [{"name": context, "user": {"client-certificate": str(pair.cert), "client-key": str(pair.key)}}],
            "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
        },
        indent=2,
    )


def _name(identity: Identity) -> x509.Name:
    groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in identity.groups]
    return x509.Name([*groups, x509.NameAttribute(NameOID.COMMON_NAME, identity.common_name)])


def _names(identity: Identity) -> Sequence[x509.GeneralName]:
    names: list[x509.GeneralName] = []
    for address in identity.addresses:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(address)))
        except ValueError:
            names.append(x509.DNSName(address))
    return names


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption())
