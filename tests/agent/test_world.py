"""The played kubelet itself, where a fault of it would make the other tests pass or fail for the wrong reason."""

from tests.agent.world import CARDS, MEM, Asks, world


async def test_an_agent_that_dies_while_a_pod_is_admitted_costs_that_pod_and_not_the_kubelet() -> None:
    async with world() as w:
        pods = [w.admit(Asks("main", 2), on={"main": [CARDS[0]]}) for _ in range(4)]
        await w.stop_agent()
        for pod in pods:
            await w.kubelet.phase(pod, "Running", "Failed", "")
        await w.kubelet.registered(MEM, 0)
        w.start_agent()
        await w.ready()
        after = w.admit(Asks("main", 2), on={"main": [CARDS[1]]})
        await w.kubelet.running(after)
        w.check(after)
