"""Credentials from a program that the kubeconfig names (``users[].user.exec``), mostly cloud logins.

Protocol: client.authentication.k8s.io/v1 and v1beta1, ExecCredential (KEP-541). The program runs without a terminal;
its output may be a token, a client certificate, or both, with an expiry.
"""

import asyncio
import os
import ssl
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path

import msgspec

from fractile.errors import SetupError
from fractile.kube.credentials import present

_TIMEOUT = 60.0  # seconds; a login service may be slow, but users wait no longer
_EARLY = 10.0  # seconds before the expiry at which the program runs again


class _EnvVar(msgspec.Struct, frozen=True):
    name: str
    value: str = ""


class ExecConfig(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """``users[].user.exec`` of a kubeconfig."""

    command: str
    api_version: str = "client.authentication.k8s.io/v1"
    args: list[str] | None = None
    env: list[_EnvVar] | None = None
    install_hint: str = ""
    interactive_mode: str = "IfAvailable"


class _Status(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    token: str = ""
    expiration_timestamp: datetime | None = None
    client_certificate_data: str = ""
    client_key_data: str = ""


class _ExecCredential(msgspec.Struct, frozen=True):
    status: _Status | None = None


class ExecToken:
    """Runs the program when there is no credential, when it is about to expire, and after a 401."""

    def __init__(
        self,
        config: ExecConfig,
        *,
        folder: Path,
        environ: Mapping[str, str],
        server: str,
        tls: ssl.SSLContext | None,
        now: Callable[[], float] = time.time,  # expiries are wall-clock times
    ) -> None:
        if config.interactive_mode == "Always":
            raise SetupError(
                f"the login program {config.command!r} needs a terminal; use a login program that does not"
            )
        self._config = config
        self._folder = folder
        self._environ = environ
        self._server = server
        self._tls = tls
        self._now = now
        self._status: _Status | None = None
        self._once = asyncio.Lock()  # one run serves all requests that wait for it

    async def token(self) -> str:
        async with self._once:
            if self._status is None or self._expires_soon(self._status):
                self._status = await self._run()
            return self._status.token

    def rejected(self) -> bool:
        self._status = None
        return True

    def _expires_soon(self, status: _Status) -> bool:
        expiry = status.expiration_timestamp
        return expiry is not None and expiry.timestamp() - self._now() < _EARLY

    async def _run(self) -> _Status:
        output = await self._output()
        try:
            status = msgspec.json.decode(output, type=_ExecCredential).status
        except msgspec.DecodeError as e:
            raise SetupError(
                f"the login program {self._config.command!r} did not print an ExecCredential: {e}"
            ) from None
        if status is None or not (status.token or status.client_certificate_data):
            raise SetupError(f"the login program {self._config.command!r} gave neither a token nor a certificate")
        if status.client_certificate_data and self._tls is not None:
            present(self._tls, status.client_certificate_data.encode(), status.client_key_data.encode())
        return status

    async def _output(self) -> bytes:
        command = self._config.command
        if os.sep in command:  # a bare name is looked up in PATH, anything else is relative to the kubeconfig's folder
            command = str(self._folder / command)
        try:
            process = await asyncio.create_subprocess_exec(
                command,
                *(self._config.args or []),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._environment(),
            )
        except OSError as e:
            hint = f"; {' '.join(self._config.install_hint.split())}" if self._config.install_hint else ""
            raise SetupError(f"cannot run the login program {command!r}: {e.strerror}{hint}") from None
        try:
            async with asyncio.timeout(_TIMEOUT):
                out, err = await process.communicate()
        except TimeoutError:
            raise SetupError(f"the login program {command!r} did not answer within {_TIMEOUT:.0f} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            said = " ".join(err.decode(errors="replace").split())[-300:]
            raise SetupError(f"the login program {command!r} failed with status {process.returncode}: {said}")
        return out

    def _environment(self) -> dict[str, str]:
        info = {
            "apiVersion": self._config.api_version,
            "kind": "ExecCredential",
            "spec": {"interactive": False, "cluster": {"server": self._server}},
        }
        extra = {e.name: e.value for e in self._config.env or []}
        return {**self._environ, **extra, "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode()}
