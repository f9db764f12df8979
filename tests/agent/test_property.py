"""Any order of pods, sizes, init containers, deletions and restarts: card, limits and owner always belong together."""

import asyncio
import random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fractile.wire.fractile import placement
from tests.agent.planner import CARDS, OTHERS, POD, Planner
from tests.agent.world import GIB, Asks, World, card, world

STEP = st.one_of(
    st.tuples(st.just("pods"), st.lists(POD, min_size=1, max_size=5)),
    st.tuples(st.just("delete"), st.integers(0, 100)),
    st.tuples(st.sampled_from(["kubelet", "agent", "both"]), st.just(0)),
)


@settings(
    max_examples=20,
    deadline=None,
    phases=[Phase.explicit, Phase.generate, Phase.target],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(steps=st.lists(STEP, min_size=2, max_size=5), seed=st.integers(0, 2**16))
def test_card_limits_and_owner_always_belong_together(steps: list[tuple[str, object]], seed: int) -> None:
    asyncio.run(_play(steps, seed))


@pytest.mark.parametrize("seed", range(2))
async def test_fifty_equal_pods_with_a_kubelet_restart_in_the_middle(seed: int) -> None:
    async with world(cards=[card(n, 32 * GIB) for n in range(2)], seed=seed) as w:
        planner = Planner(w, random.Random(seed))
        pods = [p for _ in range(50) if (p := planner.bind((Asks("main", 1),)))]
        planner.rng.shuffle(pods)
        for pod in pods[:25]:
            w.kubelet.add(pod)
        await w.kubelet.phase(pods[5], "Running")
        await w.kubelet.stop()
        for pod in pods[25:]:
            w.kubelet.add(pod)
        w.kubelet.start()
        for pod in pods:
            await w.kubelet.running(pod)
        w.check(*pods)
        assert not w.kubelet.refusals


async def _play(steps: list[tuple[str, object]], seed: int) -> None:
    async with world(cards=CARDS, seed=seed, others=OTHERS) as w:
        planner = Planner(w, random.Random(seed))
        confirming = asyncio.create_task(planner.confirm())
        try:
            for step, detail in steps:
                await _step(w, planner, step, detail)
            await _settled(w, planner)
        finally:
            confirming.cancel()
            await asyncio.gather(confirming, return_exceptions=True)


async def _step(w: World, planner: Planner, step: str, detail: object) -> None:
    if isinstance(detail, list):
        bound = [pod for asks in detail if (pod := planner.bind(asks))]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        planner.rng.shuffle(bound)
        for pod in bound:
            w.kubelet.add(pod)
        await asyncio.sleep(planner.rng.choice([0.0, 0.02, 0.1]))
    elif step == "delete" and planner.pods and isinstance(detail, int):
        planner.delete(planner.pods[detail % len(planner.pods)])
    elif step in ("kubelet", "both"):
        await w.kubelet.stop()
        if step == "both":
            await w.stop_agent()
            w.start_agent()
        w.kubelet.start()
        await w.ready()
    elif step == "agent":
        await _settled(w, planner)  # a pod admitted while no plugin is there is lost, whoever the plugin is
        await w.restart_agent()
        await w.ready()


async def _settled(w: World, planner: Planner) -> None:
    """All pods run, and everything about them agrees; a pod is refused for nothing but a lack of confirmation."""
    for pod in planner.pods:
        await w.kubelet.running(pod)
    w.check(*planner.pods)


async def test_hostile_placements_never_start_a_container_nor_stop_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fractile.agent.deviceplugin.prestart._WAIT", 0.3)
    rng = random.Random(7)
    good = '{"version":1,"node":"n1","containers":{"main":{"role":"app","slices":[{"card":"%s","memoryMiB":%d}]}}}'
    texts = [
        good % ("GPU-nobody", 4 * GIB),
        good % (CARDS[0].uuid, 2**40),
        good % (CARDS[0].uuid, 0),
        good.replace("main", "other") % (CARDS[0].uuid, 4 * GIB),
        "[" * 20_000,
        '"\\ud800"',
        *("".join(rng.choices('{}[]":,01aé', k=40)) for _ in range(20)),
    ]
    async with world(cards=CARDS) as w:
        for text in texts:
            pod = w.bind(Asks("main", 4), on=None)
            w.annotate(pod, {placement.ANNOTATION: text})
            w.kubelet.refusals.clear()
            w.kubelet.add(pod)
            assert "PreStartContainer" in await w.kubelet.refused("")
            assert w.kubelet.started(pod, "main") is None
            w.delete(pod)
        pod = w.admit(Asks("main", 4), on={"main": [CARDS[1]]})
        await w.kubelet.running(pod)
        w.check(pod)
