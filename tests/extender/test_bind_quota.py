"""Quotas at bind: filters may be as old as they like, the ledger decides."""

import asyncio

from fractile.model.quota import NamespaceQuota, Quota, QuotaLimit
from fractile.model.refusal import Code, Refusal
from fractile.model.units import PodUID
from fractile.wire.kubernetes.extender import BindingArgs
from fractile.wire.kubernetes.objects import Pod
from tests.builders import container
from tests.fakes.apiserver import Fault
from tests.main.plane import Plane, plane

PODS = 40


def limit(p: Plane, percent: int) -> None:
    p.ledger.usage.limit(Quota({"default": NamespaceQuota(limits=(QuotaLimit("V100", percent),))}))


async def bind(p: Plane, pod: Pod, node: str) -> Refusal | None:
    return await p.binder.bind(BindingArgs(pod.metadata.name, pod.metadata.namespace, pod.metadata.uid, node))


def parts(p: Plane, count: int) -> list[Pod]:
    """Pods of 5 % of a card."""
    return [p.submit(f"p{n}", container(memory=813)) for n in range(count)]


async def test_of_many_pods_bound_at_once_over_two_nodes_no_more_are_bound_than_the_quota_bears() -> None:
    async with plane() as p:
        limit(p, 50)
        pods = parts(p, PODS)
        p.server.inject(Fault(path="/binding", delay=0.02, times=PODS))  # so that all are on their way together
        said = await asyncio.gather(*(bind(p, pod, ("n1", "n2")[n % 2]) for n, pod in enumerate(pods)))
        assert said.count(None) == 10
        refused = [refusal for refusal in said if refusal is not None]
        assert {r.code for r in refused} == {Code.QUOTA}
        assert {r.message for r in refused} == {
            "namespace default may hold 0.5 V100, holds 0.5, and this pod takes 0.05"
        }
        assert sum(w.endswith("/binding") for w in p.writes()) == 10
        assert sum(p.ledger.usage.held("default").values()) == 50


async def test_a_binding_that_the_api_server_refuses_gives_its_part_of_the_quota_back() -> None:
    async with plane() as p:
        limit(p, 5)
        first, second = parts(p, 2)
        p.server.inject(Fault(path="/binding", status=409))
        assert await bind(p, first, "n1") is not None
        assert p.entry(first) is None
        assert await bind(p, second, "n1") is None


async def test_a_quota_that_was_lowered_touches_nobody_who_runs_and_refuses_whoever_comes() -> None:
    async with plane() as p:
        first, second = parts(p, 2)
        assert await bind(p, first, "n1") is None
        limit(p, 0)
        p.see("p0")
        assert p.entry(first) is not None
        refused = await bind(p, second, "n1")
        assert refused is not None
        assert refused.message == "namespace default may hold no V100"
        p.handlers.gone(PodUID(first.metadata.uid))
        assert p.ledger.usage.held("default") == {}


async def test_a_pod_that_was_bound_before_the_quota_was_known_counts() -> None:
    async with plane() as p:
        first, second = parts(p, 2)
        assert await bind(p, first, "n1") is None
        limit(p, 5)
        refused = await bind(p, second, "n2")
        assert refused is not None
        assert refused.code is Code.QUOTA
