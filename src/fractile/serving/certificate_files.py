"""A serving certificate and its key in files that may be renewed: checked at the start, read again after changes."""

import asyncio
import logging
import ssl
from pathlib import Path

import msgspec

from fractile.errors import SetupError

LOOK_AGAIN = 30.0  # seconds between two checks of the files; kubelet renews mounted Secrets once a minute

log = logging.getLogger(__name__)


class Pair(msgspec.Struct, frozen=True):
    """Two PEM files."""

    cert: Path
    key: Path

    def check(self) -> None:
        """Check the files. Raises SetupError, worded for the person who gave them, when they cannot be used."""
        for file in (self.cert, self.key):
            if not file.is_file():
                raise SetupError(f"{file} does not exist; give the PEM file of the serving certificate or key")
        try:
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        except (OSError, ValueError) as e:
            said = f"{self.cert} and {self.key} are not a PEM certificate and its key without a password ({e})"
            raise SetupError(said) from None

    def context(self) -> ssl.SSLContext:
        """A context to serve with. Raises SetupError as ``check`` does."""
        self.check()
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._load(context)
        return context

    async def renew(self, context: ssl.SSLContext, *, every: float = LOOK_AGAIN) -> None:
        """Until cancelled, use the new certificate for connections made after a change of the files. A pair that does
        not match, as while one of two files is written, changes nothing."""
        seen = self._texts()
        while True:
            await asyncio.sleep(every)
            if (now := self._texts()) == seen:
                continue
            try:
                self.check()
                self._load(context)
            except (OSError, ValueError, SetupError) as e:
                log.warning("certificate not renewed file=%s reason=%s", self.cert, e)
                continue
            seen = now
            log.info("certificate renewed file=%s", self.cert)

    def _load(self, context: ssl.SSLContext) -> None:
        context.load_cert_chain(self.cert, self.key, password=b"")

    def _texts(self) -> tuple[bytes, bytes] | None:
        try:
            return self.cert.read_bytes(), self.key.read_bytes()
        except OSError:
            return None
