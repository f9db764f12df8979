"""The pods that are to exist, and asking an API server for them that may be away: what failed is asked for again."""

from collections.abc import Collection, Mapping, Sequence

from fractile.errors import ApiError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from tests.chaos.acts import pods
from tests.chaos.acts.pods import Step
from tests.chaos.judging import settled
from tests.chaos.judging.journal import Journal
from tests.chaos.judging.snapshot import SeenPod

NAMESPACE = "chaos"
_THERE, _GONE = 409, 404


class Wishes:
    """``created`` and ``refused`` count pods; ``deleted``: the names of those that may end; ``lost``: the UIDs of those
    that ran until kubelet failed them, by its own rule (readmission.py)."""

    def __init__(self, client: KubeClient, seed: int, journal: Journal) -> None:
        self.wanted: dict[str, str] = {}
        self.created = 0
        self.refused = 0
        self.deleted: set[str] = set()
        self.lost: set[str] = set()
        self._client, self._seed, self._journal = client, seed, journal
        self._made: set[str] = set()
        self._failed: set[str] = set()  # UIDs of pods that kubelet refused

    def only(self, wanted: Mapping[str, str]) -> None:
        """These are to exist from now on, name -> kind."""
        self.wanted = dict(wanted)

    async def follow(self, step: Step) -> None:
        """Do it once; FractileError when it does not go."""
        if step.kind:
            await self._create(step.name, step.kind)
        else:
            await self._delete(step.name)

    async def bring_about(self, seen: Sequence[SeenPod], ran: Collection[str]) -> None:
        """Create and delete what is missing or left over. A pod that kubelet refused before it ran is made again, as
        its controller would, and so is a lost one. ``ran``: the UIDs of those that were seen to run."""
        there = {p.name: p for p in seen if p.metadata.namespace == NAMESPACE}
        for pod in there.values():
            if pod.uid in self.lost or (settled.refused(pod) and pod.uid not in ran):
                await self._replace(pod)
            elif pod.name not in self.wanted and not pod.leaving:
                await self._delete(pod.name)
        for name, kind in self.wanted.items():
            if name not in there:
                await self._create(name, kind)

    async def _replace(self, pod: SeenPod) -> None:
        if pod.uid not in self._failed:
            self._failed.add(pod.uid)
            self.refused += pod.uid not in self.lost
            what = "lost by" if pod.uid in self.lost else "refused by"
            self._journal.note(f"{what} kubelet: {pod.name}: {pod.status.reason}: {pod.status.message}")
        await self._delete(pod.name)
        self._made.discard(pod.name)

    async def _create(self, name: str, kind: str) -> None:
        """A request without an answer may have made it: the next one then finds it there."""
        if name in self._made:
            return
        self.deleted.discard(name)
        try:
            await self._client.create(paths.pods(NAMESPACE), pods.manifest(self._seed, name, kind))
        except ApiError as e:
            if e.code != _THERE:
                raise
        self._made.add(name)
        self.created += 1
        self._journal.note(f"created {name}")

    async def _delete(self, name: str) -> None:
        self.deleted.add(name)
        try:
            await self._client.delete(paths.pod(NAMESPACE, name))
        except ApiError as e:
            if e.code != _GONE:
                raise
        self._journal.note(f"deleted {name}")
