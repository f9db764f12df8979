"""A run: the cluster is made ready for chaos, rounds are played on it, and it is given back as it was."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec

from fractile.kube import credentials, paths
from fractile.kube.client import KubeClient
from fractile.lab.cluster.local import LocalCluster
from tests.chaos.acts import pods
from tests.chaos.acts.prepared import prepare
from tests.chaos.acts.programs import Programs
from tests.chaos.acts.wishes import NAMESPACE, Wishes
from tests.chaos.judging.journal import Journal
from tests.chaos.judging.seeing import Eyes
from tests.chaos.rounds import Rounds, Settings, Sums

_ANSWER = 10.0  # seconds for an answer of the API server


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """``more``: whether there is to be a round of that number; ``sweep``: whether to wait at the end until directories
    without an owner are gone; ``restore``: whether the cluster goes on to live."""

    settings: Settings
    logs: Path
    more: Callable[[int], bool]
    say: Callable[[str], None]
    sweep: bool = False
    restore: bool = True


async def chaos(cluster: LocalCluster, run: Run) -> Sums:
    """Play the rounds; the first that finds something is the last."""
    run.say(f"seed={run.settings.seed}")
    programs = Programs(cluster)
    seed = run.settings.seed
    async with KubeClient(credentials.load(cluster.kubeconfig), timeout=_ANSWER, rng=Random(seed)) as client:
        await prepare(client, NAMESPACE, pods.CLASSES)
        journal = Journal(run.logs)
        wishes = Wishes(client, seed, journal)
        eyes = Eyes(cluster, client, programs)
        rounds = Rounds(programs, wishes, eyes, run.settings, journal=journal, say=run.say)
        try:
            await programs.begin()
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(programs.watch())
                await _play(rounds, run)
                watching.cancel()
        finally:
            await programs.end(restore=run.restore)
        if run.restore:
            await _take_away(client)
        return rounds.sums


async def _play(rounds: Rounds, run: Run) -> None:
    turn, fine = 1, await rounds.rest()
    while fine and run.more(turn):
        fine = await rounds.round(turn)
        turn += 1
    if fine:
        await rounds.clear()
        if run.sweep:
            await rounds.sweep()


async def _take_away(client: KubeClient) -> None:
    """What was made for the run: classes would show among those of others."""
    for path in (*map(paths.resource_class, pods.CLASSES), paths.namespace(NAMESPACE)):
        await client.delete(path)
