"""Keeps the quotas that are in force in a ConfigMap of our own, for the next start of the control plane.

The quotas' own ConfigMap may be malformed when a program starts or restarts: then its last valid content is needed, and
no memory holds it. So the text in force is stored in a second ConfigMap, and read while nothing better is known.

Level-triggered: it checks once a minute, and after every change. The copy is cleared when the quotas' ConfigMap is
deleted, and left alone while that one is invalid. Two replicas that have seen the same write the same. Failure rule:
the quotas are in force whether they are kept or not; a failure is logged once and retried.
"""

import asyncio
import logging
import random
from collections.abc import Callable

from fractile.errors import ApiError, FractileError, Unreachable, WireError
from fractile.kube import paths
from fractile.kube.backoff import Backoff
from fractile.kube.client import KubeClient
from fractile.model.quota import NamespaceQuota
from fractile.wire.files import quota_file
from fractile.wire.kubernetes.objects import ConfigMap

_LOOK = 60.0  # seconds between two checks while nothing changes
_PATIENCE = 5.0  # seconds for the first check: until then the quotas' ConfigMap is not judged

log = logging.getLogger(__name__)

Recall = Callable[[dict[str, NamespaceQuota]], None]


class QuotaKeeper:
    """``location``: namespace and name of our ConfigMap, which must exist; ``source``: those of the quotas' own.

    ``current`` returns what should be kept: a text, "" for nothing, None for what is kept already. ``recall`` is called
    with the kept quotas while ``current`` returns None.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        location: str,
        source: str,
        current: Callable[[], str | None],
        recall: Recall,
        rng: random.Random | None = None,
    ) -> None:
        self._client = client
        self._path = paths.config_map(*location.split("/"))
        self._location = location
        self._source = source
        self._current = current
        self._recall = recall
        self._backoff = Backoff(base=1.0, cap=_LOOK, rng=rng or random.Random())
        self._changed = asyncio.Event()
        self._told = ""

    def changed(self) -> None:
        """What should be kept may have changed."""
        self._changed.set()

    async def first(self) -> None:
        """Read the kept quotas. Call it before the quotas' ConfigMap is read, or an event may say that none exist."""
        try:
            async with asyncio.timeout(_PATIENCE):
                await self.look()
        except TimeoutError:
            log.warning("kept quotas not read yet location=%s reason=%r", self._location, "no answer")

    async def run(self) -> None:
        """Compare forever."""
        while True:
            if await self.look():
                self._backoff.reset()
                await self._rest(_LOOK)
            else:
                await asyncio.sleep(self._backoff.next())

    async def look(self) -> bool:
        """Compare what is kept with what should be; False when that failed."""
        self._changed.clear()
        try:
            await self._compare()
        except FractileError as e:
            if self._told != str(e):
                self._told = str(e)
                log.warning("quotas not kept location=%s reason=%s", self._location, e)
            return not isinstance(e, ApiError | Unreachable)
        self._told = ""
        return True

    async def _compare(self) -> None:
        kept = (await self._client.get(self._path, ConfigMap)).data or {}
        text = self._current()
        if text is None:
            self._remember(kept)
            return
        wanted = {quota_file.KEY: text} if text else {}
        if wanted != kept:
            await self._client.merge_patch(self._path, {"data": dict.fromkeys(kept) | wanted})
            log.info("quotas kept location=%s characters=%d", self._location, len(text))

    def _remember(self, kept: dict[str, str]) -> None:
        if not kept:
            return
        try:
            quotas = quota_file.decode(kept, f"ConfigMap {self._location}, where quotas are kept")
        except WireError as e:
            raise WireError(f"{e}; it is written again when {self._source} is valid") from None
        self._recall(quotas)

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return
