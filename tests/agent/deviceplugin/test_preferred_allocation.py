"""What is remembered of preferred ids, and how long. For whom they are preferred: test_path, test_property."""

import pytest

from fractile.agent.deviceplugin import preferred_allocation
from fractile.agent.kubelet.identity import AdmittedContainer, Unknown
from fractile.agent.kubelet.kubelet_state import Kubelet, KubeletState
from fractile.agent.node.pods import NodePods
from fractile.kube.client import KubeClient
from fractile.kube.reflector import Gone
from fractile.model.request import Role
from tests.agent.world import CARDS, COUNT, MEM, NODE, Asks, credentials, world

IDS = [f"{CARDS[0].uuid}::{n}" for n in range(4)]


class Silent(Kubelet):
    """Its books are not asked for: the test says who asks."""

    reads = 0

    async def state(self) -> KubeletState:
        self.reads += 1
        return KubeletState((), None)


async def test_ids_are_remembered_as_long_as_their_pod_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    asking: list[AdmittedContainer] = []

    async def who_asks(*_: object) -> AdmittedContainer | Unknown:
        return asking.pop() if asking else Unknown("nobody waits")

    monkeypatch.setattr(preferred_allocation, "who_asks", who_asks)
    now = 0.0
    async with world(agent=False) as w, KubeClient(credentials(w)) as client:
        pods = NodePods(client, node=NODE, unit=w.unit)
        allocation = preferred_allocation.PreferredAllocation(
            Silent(w.root / "none", w.root / "none"), pods, clock=lambda: now
        )

        async def preferred(ids: list[str], name: str) -> None:
            pod = w.bind(Asks("a", 2), Asks("b", 5), on=None, name=name)
            request = w.request(pod)
            asking.append(AdmittedContainer(pod, request, request.containers[0]))
            assert await allocation.prefer(MEM, available=ids, must_include=[], size=2) == ids
            if name != "never-shown":
                pods.changed(pod)

        async def pod_amount(ids: list[str]) -> int:
            """7 while the pod is remembered; the number of ids when nobody knows whose they are."""
            return (await allocation.facts(MEM, frozenset(ids[:1]))).pod_amount

        await preferred(IDS[:2], "there")
        await preferred(IDS[2:], "never-shown")
        assert (await pod_amount(IDS[:2]), await pod_amount(IDS[2:])) == (7, 7)
        now = 61.0
        other = [f"{CARDS[1].uuid}::{n}" for n in range(2)]
        await preferred(other, "later")
        assert (await pod_amount(IDS[:2]), await pod_amount(IDS[2:]), await pod_amount(other)) == (7, 1, 7)
        there = pods.by_name("default", "there")[0].pod.metadata
        pods.gone(Gone(there.namespace, there.name, there.uid))
        await preferred([f"{CARDS[1].uuid}::{n}" for n in (2, 3)], "last")
        assert (await pod_amount(IDS[:2]), await pod_amount(other)) == (1, 7)


async def test_who_takes_over_the_ids_of_an_init_container_is_known_without_a_look_at_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asking: list[AdmittedContainer] = []

    async def who_asks(*_: object) -> AdmittedContainer | Unknown:
        return asking.pop() if asking else Unknown("nobody waits")

    monkeypatch.setattr(preferred_allocation, "who_asks", who_asks)
    async with world(agent=False) as w, KubeClient(credentials(w)) as client:
        kubelet = Silent(w.root / "none", w.root / "none")
        allocation = preferred_allocation.PreferredAllocation(kubelet, NodePods(client, node=NODE, unit=w.unit))
        inits = [Asks(f"i{n}", 2, role=Role.INIT) for n in range(50)]
        request = w.request(w.bind(*inits, Asks("other", 9, COUNT, Role.INIT), Asks("main", 1), on=None))
        asking.append(AdmittedContainer(w.bind(on=None), request, request.containers[0]))
        await allocation.prefer(MEM, available=IDS[:2], must_include=[], size=2)
        found = [await allocation.facts(MEM, frozenset(IDS[:2])) for _ in inits]
        found.append(await allocation.facts(MEM, frozenset(IDS[:1])))
        assert [f.amounts for f in found] == [c.amounts for c in request.containers if c.resource == MEM]
        assert {f.pod_amount for f in found} == {2}
        assert kubelet.reads == 1, "for the first of them"
        await allocation.facts(MEM, frozenset(IDS[:1]))
        assert kubelet.reads == 2, "there is none after the last"
