"""A running pod that kubelet failed is lost only where nobody but kubelet could have spared it; else it was killed."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from fractile.cluster import workload as w
from tests.chaos.faults import Kind
from tests.chaos.readmission import WITHIN, Outage, lost
from tests.chaos.snapshot import SeenPod
from tests.chaos.world import seen_pod

AWAY = "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices x"
KUBELET = Outage("n1/kubelet", Kind.KILL, 100.0, 104.0)
AGENT = Outage("n1/agent", Kind.KILL, 104.5, 110.0)


def failed(*, reason: str = "UnexpectedAdmissionError", message: str = AWAY, init: bool = True) -> SeenPod:
    pod = seen_pod("one", node="n1", phase="Failed", started=True)
    initial: list[Mapping[str, Any]] = [w.container("init", memory=500)] if init else []
    made = msgspec.to_builtins(pod) | {"status": {"phase": "Failed", "reason": reason, "message": message}}
    made["spec"]["initContainers"] = initial
    return msgspec.convert(made, SeenPod)


def test_a_pod_whose_init_container_asked_for_a_card_is_lost_when_kubelet_came_back_without_the_agent() -> None:
    assert lost(failed(), [KUBELET, AGENT])


@pytest.mark.parametrize(
    "pod",
    [
        failed(init=False),
        failed(message="Allocate failed due to rpc error: the card is gone"),
        failed(reason="Evicted"),
        seen_pod("one", node="n1"),
    ],
    ids=["no init container", "another sentence", "another reason", "runs"],
)
def test_any_other_pod_is_not(pod: SeenPod) -> None:
    assert not lost(pod, [KUBELET, AGENT])


@pytest.mark.parametrize(
    "outages",
    [
        [],
        [KUBELET],
        [AGENT],
        [KUBELET, Outage("n2/agent", Kind.KILL, 104.5, 110.0)],
        [KUBELET, Outage("n1/agent", Kind.CUT, 104.5, 110.0)],
        [Outage("n1/kubelet", Kind.PAUSE, 100.0, 104.0), AGENT],
        [KUBELET, Outage("n1/agent", Kind.KILL, 104.1 + WITHIN, 120.0)],
        [KUBELET, Outage("n1/agent", Kind.KILL, 80.0, 99.9 - WITHIN)],
    ],
    ids=[
        "nothing",
        "the agent was there",
        "kubelet was there",
        "another node",
        "the agent had no API",
        "kubelet slept",
        "much later",
        "long before",
    ],
)
def test_nor_is_one_whose_agent_was_there_when_kubelet_came(outages: list[Outage]) -> None:
    assert not lost(failed(), outages)
