"""The certificates that kube-scheduler will use with the extender, checked before they are installed.

kube-scheduler exits if a file is not a certificate, but does not report an expired one: then every GPU pod just waits.
"""

import socket
import ssl
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509

from fractile.errors import SetupError
from fractile.kubeadm import files
from fractile.kubeadm.files import File
from fractile.wire.kubernetes.scheduler_config import ExtenderConfig, Tls

_TIMEOUT = 3.0  # seconds


def read(tls: Tls, *, now: datetime) -> dict[str, File]:
    """The files ``ca``, ``client`` and ``client-key``, as far as ``tls`` names them. SetupError if one is invalid."""
    found: dict[str, File] = {}
    if tls.ca:
        found["ca"] = File(files.read(Path(tls.ca)))
        _check(tls.ca, found["ca"], now)
    if tls.cert:
        found["client"] = File(files.read(Path(tls.cert)))
        found["client-key"] = File(files.read(Path(tls.key)), secret=True)
        _check(tls.cert, found["client"], now)
        _check_pair(tls)
    return found


def _check(name: str, file: File, now: datetime) -> None:
    try:
        certificates = x509.load_pem_x509_certificates(file.data)
    except ValueError:
        raise SetupError(f"{name} holds no certificate in PEM") from None
    if b"PRIVATE KEY" in file.data:
        raise SetupError(f"{name} holds a private key too; it must hold only the certificate")
    for certificate in certificates:
        if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            raise SetupError(
                f"{name} is valid from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} to "
                f"{certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC only"
            )


def _check_pair(tls: Tls) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(tls.cert, tls.key, password="")
    except (ssl.SSLError, OSError, ValueError):
        raise SetupError(f"{tls.key} is not the key of {tls.cert}, or needs a password") from None


def unreachable(extender: ExtenderConfig) -> str:
    """Why kube-scheduler could not reach the extender from this node; empty when it could.

    Its static pod uses the node's network and host names, so the result here holds for it too.
    """
    url = urlsplit(extender.url)
    host = url.hostname or ""
    try:
        port = url.port or (443 if url.scheme == "https" else 80)
        with socket.create_connection((host, port), timeout=_TIMEOUT) as connection:
            if url.scheme == "https":
                _context(extender.tls).wrap_socket(connection, server_hostname=extender.tls.server_name or host).close()
    except (OSError, ValueError) as e:
        return str(e) or type(e).__name__
    return ""


def _context(tls: Tls) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.ca or None)
    if tls.insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if tls.cert:
        context.load_cert_chain(tls.cert, tls.key, password="")
    return context
