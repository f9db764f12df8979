"""Write the bundle that the API server must trust into the two webhook configurations, level-triggered.

All other fields belong to the owner of the manifests. A configuration that names cert-manager's injector is left alone.
Failure rule: retried forever; without the bundle the API server cannot call us and proceeds without us (failurePolicy).
"""

import asyncio
import logging
import time
from collections.abc import Callable

from fractile.errors import ApiError, Unreachable, WireError
from fractile.kube.client import KubeClient
from fractile.kube.pacing import Clock, Sleep
from fractile.wire.kubernetes import webhook as wire

NAME = "fractile"  # of both configurations
MUTATING = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{NAME}"
VALIDATING = f"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/{NAME}"

LOOK = 15.0  # seconds
RETRY = 1.0
SETTLED = 60.0  # seconds after which every API server has seen a configuration; their watches take less than one

log = logging.getLogger(__name__)


class Configuration:
    """Keeps both configurations up to date. ``bundle`` returns the wanted bundle; empty: nothing to write yet."""

    def __init__(
        self,
        client: KubeClient,
        bundle: Callable[[], bytes],
        *,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._client = client
        self._bundle = bundle
        self._clock = clock
        self._sleep = sleep
        self._seen = (b"", 0.0)  # the bundle in both, and when that was first seen
        self._told = ""

    def published(self, bundle: bytes) -> bool:
        """Whether both have contained this bundle for so long that every API server uses it."""
        seen, since = self._seen
        return bool(seen) and seen == bundle and self._clock() - since >= SETTLED

    async def run(self) -> None:
        """Compare and correct forever."""
        while True:
            await self._sleep(LOOK if await self.look() else RETRY)

    async def look(self) -> bool:
        """Correct both configurations; False when that is not complete yet."""
        bundle = self._bundle()
        if not bundle:
            return False
        try:
            for path in (MUTATING, VALIDATING):
                await self._mend(path, bundle)
        except (ApiError, Unreachable, WireError) as e:
            if str(e) != self._told:
                self._told = str(e)
                log.warning("bundle not written reason=%s", e)
            return False
        self._told = ""
        if self._seen[0] != bundle:
            self._seen = (bundle, self._clock())
        return True

    async def _mend(self, path: str, bundle: bytes) -> None:
        found = await self._client.get(path, wire.Json)
        mended = wire.with_bundle(found, bundle)
        if mended is not None:
            await self._client.replace(path, mended)
            log.info("bundle written configuration=%s", path)
