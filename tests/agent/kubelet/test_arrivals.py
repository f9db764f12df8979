"""Who is bound to the node and was not admitted by kubelet yet."""

from fractile.agent.kubelet.arrivals import arriving
from fractile.agent.kubelet.kubelet_state import Kubelet
from fractile.agent.node.pods import NodePods
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.wire.foreign.kubelet_checkpoint import FILE_NAME
from fractile.wire.kubernetes.objects import Pod
from tests.agent.world import CARDS, NODE, Asks, World, credentials, world


async def names(w: World, client: KubeClient) -> list[str]:
    pods = NodePods(client, node=NODE, unit=w.unit)
    for pod in (await client.list(paths.pods(), Pod))[0]:
        pods.changed(pod)
    kubelet = Kubelet(w.kubelet.plugin_directory / "no-socket", w.kubelet.plugin_directory / FILE_NAME)
    return await arriving(kubelet, pods)


async def test_a_pod_is_on_its_way_from_its_binding_to_its_admission() -> None:
    async with world() as w, KubeClient(credentials(w)) as client:
        pod = w.bind(Asks("main", 2), on={"main": [CARDS[0]]}, name="late")
        assert await names(w, client) == ["default/late"]
        w.kubelet.add(pod)
        await w.kubelet.running(pod)
        assert await names(w, client) == []


async def test_nobody_waits_for_pods_that_end_or_run_or_while_kubelets_record_is_unreadable() -> None:
    async with world(agent=False) as w, KubeClient(credentials(w)) as client:
        for name, phase in (("done", "Succeeded"), ("refused", "Failed"), ("runs", "Running"), ("comes", "Pending")):
            w.bind(Asks("main", 2), on={"main": [CARDS[0]]}, name=name)
            w.server.merge(f"{paths.pod('default', name)}/status", {"status": {"phase": phase}})
        assert await names(w, client) == ["default/comes"]
        w.kubelet.plugin_directory.mkdir(parents=True, exist_ok=True)
        (w.kubelet.plugin_directory / FILE_NAME).write_text("no json")
        assert await names(w, client) == []
