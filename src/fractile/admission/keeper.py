"""Keep the server's TLS context up to date, from a Secret that all replicas share, or from files.

The Secret is the source of truth: a replica that finds something due writes it back with the resourceVersion that it
read, so of two replicas one succeeds and the other reads again. A late replica serves the old certificate for a few
seconds, which the bundle still covers. A deleted Secret is recreated: by a replica that serves a certificate with that
certificate, so that callers notice nothing, and by a new leader with a new one. It is recreated by server-side apply,
the only creating request that names its object, so that RBAC can grant the right for this Secret alone. Failure rule:
what is loaded stays loaded; while the API server is unreachable nothing is renewed. A replica that has no certificate
and cannot get one retries every two seconds and reports it (log, event, metric); its extender serves meanwhile.
"""

import asyncio
import logging
import os
import ssl
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from fractile.admission import certificates
from fractile.admission.certificates import Material
from fractile.errors import ApiError, SetupError, Unreachable, WireError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.events import ObjectRef
from fractile.kube.pacing import Sleep
from fractile.wire.kubernetes import webhook as wire

LOOK = 15.0  # seconds between two checks of the Secret or the files
RETRY = 2.0  # after a failure, and before the first success
PATIENCE = 2  # failed checks before an event: another replica may just have been faster

Warn = Callable[[ObjectRef, str, str], None]  # object, reason, message

_OWNER = "fractile"  # field manager of a recreated Secret

_KEYS = {"bundle": "ca.crt", "ca_key": "ca.key", "cert": "tls.crt", "key": "tls.key"}

_MEND = "create an empty Secret with this name, or grant the control plane the rights of its Role fractile:webhook"

log = logging.getLogger(__name__)


class ServedCertificate:
    """The server's TLS context, and the bundle that its callers must trust (empty: they get it elsewhere). ``loaded``
    is set once there is a certificate."""

    def __init__(self) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.loaded = asyncio.Event()
        self.bundle = b""
        self._pair: bytes = b""

    def load(self, cert: bytes, key: bytes, bundle: bytes) -> None:
        """Use this certificate for new connections; SetupError when it is not valid."""
        pair = key.rstrip(b"\n") + b"\n" + cert
        if pair != self._pair:
            _load_chain(self.context, pair)
            log.info("serving certificate loaded")
        self._pair, self.bundle = pair, bundle
        self.loaded.set()


class SecretKeeper:
    """Creates and renews the certificates. ``published`` says whether the API server has known a bundle for a while;
    ``warn`` is called when there is no certificate."""

    def __init__(
        self,
        client: KubeClient,
        served: ServedCertificate,
        *,
        secret: ObjectRef,
        names: Sequence[str],
        published: Callable[[bytes], bool],
        now: Callable[[], datetime],
        warn: Warn,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._client = client
        self._served = served
        self._about = secret
        self._path = paths.secret(secret.namespace, secret.name)
        self._names = tuple(names)
        self._published = published
        self._now = now
        self._warn = warn
        self._sleep = sleep
        self._last: wire.Json = {}  # the Secret as it was last read or written
        self._told = ""
        self._failures = 0  # failed checks in a row

    async def run(self) -> None:
        """Check the Secret forever."""
        while True:
            await self._sleep(LOOK if await self.look() else RETRY)

    async def look(self) -> bool:
        """Read the Secret, renew what is due, load the certificate; False on failure."""
        try:
            material = await self._renew()
            self._served.load(material.cert, material.key, material.bundle)
        except (ApiError, Unreachable, WireError, SetupError) as e:
            self._failed(str(e))
            return False
        self._told, self._failures = "", 0
        return True

    def _failed(self, why: str) -> None:
        self._failures += 1
        certified = self._served.loaded.is_set()
        if why != self._told and certified:
            log.warning("certificates not renewed secret=%s reason=%s", self._path, why)
        if why != self._told and not certified:
            log.error("webhook without a certificate secret=%s reason=%s", self._path, why)
        if self._failures == PATIENCE and not certified:
            text = f"the webhook has no certificate, so pods are created without the webhook: {why}; {_MEND}"
            self._warn(self._about, "WebhookWithoutCertificate", text)
        self._told = why

    async def _renew(self) -> Material:
        there, secret = await self._read()
        before = Material(**{field: wire.secret_value(secret, key) for field, key in _KEYS.items()})
        published = self._published(before.bundle)
        after = certificates.renewed(before, self._names, now=self._now(), published=published)
        values: dict[str, bytes] = msgspec.structs.asdict(after)
        wanted = wire.with_values(secret, {_KEYS[field]: value for field, value in values.items()})
        if not there:
            await self._client.apply(self._path, wanted, field_manager=_OWNER, force=False)
            log.warning("certificates created again secret=%s", self._path)
        elif after != before:
            await self._client.replace(self._path, wanted)
            log.info("certificates renewed secret=%s", self._path)
        self._last = wanted
        return after

    async def _read(self) -> tuple[bool, wire.Json]:
        """Whether the Secret exists, and the Secret or its replacement."""
        try:
            return True, await self._client.get(self._path, wire.Json)
        except ApiError as e:
            if e.code != 404:
                raise
            return False, wire.secret_again(self._last, self._about.name)


class FileKeeper:
    """Serves a certificate from files that another program renews, such as cert-manager in a mounted Secret."""

    def __init__(
        self, served: ServedCertificate, *, cert: Path, key: Path, ca: Path | None, sleep: Sleep = asyncio.sleep
    ) -> None:
        self._served = served
        self._cert = cert
        self._key = key
        self._ca = ca
        self._sleep = sleep
        self._told = ""
        self._read()  # unreadable files stop the program at the start

    async def run(self) -> None:
        """Check the files forever."""
        while True:
            await self._sleep(LOOK)
            self.look()

    def look(self) -> None:
        try:
            self._read()
        except SetupError as e:  # perhaps read during a change
            if str(e) != self._told:
                self._told = str(e)
                log.warning("serving certificate unchanged reason=%s", e)

    def _read(self) -> None:
        try:
            cert, key = self._cert.read_bytes(), self._key.read_bytes()
            bundle = self._ca.read_bytes() if self._ca else b""
        except OSError as e:
            raise SetupError(f"the webhook's certificate cannot be read: {e}") from None
        self._served.load(cert, key, bundle)
        self._told = ""


def _load_chain(context: ssl.SSLContext, pair: bytes) -> None:
    """Load the pair through a file in memory: OpenSSL reads only files, and this leaves no key on disk."""
    file = os.memfd_create("fractile-webhook", os.MFD_CLOEXEC)
    try:
        os.write(file, pair)
        context.load_cert_chain(f"/proc/self/fd/{file}", password=b"")
    except (OSError, ValueError) as e:
        raise SetupError(f"the webhook's certificate and key must be a PEM pair without a password ({e})") from None
    finally:
        os.close(file)
