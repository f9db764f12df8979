"""A running pod that kubelet failed is lost only where nobody but kubelet could have spared it; else it was killed."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from fractile.lab.demos import workload as w
from tests.chaos.acts.faults import Kind
from tests.chaos.judging.readmission import AFTER, Outage, lost
from tests.chaos.judging.snapshot import SeenPod
from tests.chaos.world import seen_pod

AGENT = Outage("n1/agent", Kind.KILL, 104.5, 110.0)


DENIED = {"uid-one": 106.0}


def ended(*, phase: str = "Failed", init: bool = True) -> SeenPod:
    pod = seen_pod("one", node="n1", phase=phase, started=True)
    initial: list[Mapping[str, Any]] = [w.container("init", memory=500)] if init else []
    made = msgspec.to_builtins(pod)
    made["spec"]["initContainers"] = initial
    return msgspec.convert(made, SeenPod)


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_a_pod_whose_init_container_asked_for_a_card_is_lost_when_kubelet_came_back_without_the_agent(
    phase: str,
) -> None:
    assert lost(ended(phase=phase), DENIED, [AGENT])


def test_any_other_pod_is_not() -> None:
    assert not lost(ended(init=False), DENIED, [AGENT])
    assert not lost(ended(), {"uid-other": 106.0}, [AGENT])
    assert not lost(ended(phase="Running"), DENIED, [AGENT])


@pytest.mark.parametrize(
    "outage",
    [
        Outage("n2/agent", Kind.KILL, 104.5, 110.0),
        Outage("n1/kubelet", Kind.KILL, 104.5, 110.0),
        Outage("n1/agent", Kind.CUT, 104.5, 110.0),
        Outage("n1/agent", Kind.KILL, 106.1, 110.0),
        Outage("n1/agent", Kind.KILL, 90.0, 105.9 - AFTER),
    ],
    ids=["another node", "kubelet alone", "it had no API", "it was taken away later", "it was back long before"],
)
def test_nor_is_one_whose_agent_was_there_when_kubelet_came(outage: Outage) -> None:
    assert not lost(ended(), DENIED, [outage])


def test_an_agent_that_was_just_started_again_counts_as_away() -> None:
    assert lost(ended(), DENIED, [Outage("n1/agent", Kind.RESTART, 100.0, 106.1 - AFTER)])
