"""Keeps the quotas that are in force in a ConfigMap of our own, for the control plane that starts next.

The quotas' own ConfigMap may be malformed when a program starts, or restarts: then what it said last is wanted, and
nobody in memory knows it. So the text that is in force is written beside it, and read while nothing better is known.

Level-triggered: a look once a minute, and after every change. It is cleared when the quotas' ConfigMap is deleted, and
left alone while that makes no sense. Two replicas that have seen the same write the same. Failure rule: the quotas are
in force whether they are kept or not; what fails is told once and tried again.
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

_LOOK = 60.0  # seconds between two looks while nothing changes
_PATIENCE = 5.0  # for the first look: until then the quotas' ConfigMap is not judged

log = logging.getLogger(__name__)

Recall = Callable[[dict[str, NamespaceQuota]], None]


class QuotaKeeper:
    """``location``: namespace and name of our ConfigMap, which must be there; ``source``: those of the quotas' own.

    ``current`` says what should be kept: a text, "" for nothing, None for what is there. ``recall`` is told what was
    kept, while ``current`` is None.
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
        """What should be kept may be something else."""
        self._changed.set()

    async def first(self) -> None:
        """Read what was kept; before the quotas' ConfigMap is looked at, or an event would say that nothing was."""
        try:
            async with asyncio.timeout(_PATIENCE):
                await self.look()
        except TimeoutError:
            log.warning("kept quotas not read yet location=%s reason=%r", self._location, "no answer")

    async def run(self) -> None:
        """Work forever."""
        while True:
            if await self.look():
                self._backoff.reset()
                await self._rest(_LOOK)
            else:
                await asyncio.sleep(self._backoff.next())

    async def look(self) -> bool:
        """Compare what is kept with what should be; False when that did not work."""
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
            raise WireError(f"{e}; it is written anew when {self._source} makes sense") from None
        self._recall(quotas)

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return
