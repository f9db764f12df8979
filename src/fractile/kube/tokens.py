"""Where a bearer token comes from, and when it is read again."""

import time
from pathlib import Path
from typing import Protocol

from fractile.errors import SetupError
from fractile.kube.pacing import Clock

_REREAD = 60.0  # seconds; kubelet renews a token long before it expires


class TokenSource(Protocol):
    async def token(self) -> str:
        """The token to send now; empty for none."""
        ...

    def rejected(self) -> bool:
        """The server answered 401. True when the next ``token`` may differ, so that one retry makes sense."""
        ...


class NoToken:
    """Certificates only, or an open server."""

    async def token(self) -> str:
        return ""

    def rejected(self) -> bool:
        return False


class StaticToken:
    """A token written into the kubeconfig."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token

    def rejected(self) -> bool:
        return False


class FileToken:
    """A token in a file that another program renews."""

    def __init__(self, path: Path, *, clock: Clock = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._token = ""
        self._read_at = 0.0

    async def token(self) -> str:
        if not self._token or self._clock() - self._read_at > _REREAD:
            self._read()
        return self._token

    def rejected(self) -> bool:
        self._token = ""
        return True

    def _read(self) -> None:
        try:
            text = self._path.read_text().strip()
        except (OSError, UnicodeDecodeError) as e:
            raise SetupError(f"cannot read the token file {self._path}: {e}") from None
        if not (text.isascii() and text.isprintable() and text):
            raise SetupError(f"the token file {self._path} does not hold a token; write the token into it")
        self._token, self._read_at = text, self._clock()
