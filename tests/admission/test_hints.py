"""What is accepted and does not do what it says is told to whoever writes it."""

import pytest

from fractile.admission.hints import hints
from fractile.dialects.table import parse_pod
from fractile.model.units import MemoryUnit
from tests.builders import container, pod

ANY = {"aliyun.com/gpu-mem": "100"}
HAMI = {"nvidia.com/gpu": "1"}


def told(limits: dict[str, object], **annotations: str) -> tuple[str, ...]:
    keys = {"type": "nvidia.com/use-gputype", "limit": "tencent.com/vcuda-core-limit"}
    keys |= {"cards": "hami.io/gpu-scheduler-policy", "nodes": "hami.io/node-scheduler-policy"}
    keys |= {"policy": "fractile.dev/node-policy"}
    made = pod("p", container(limits=limits), annotations={keys[k]: v for k, v in annotations.items()})
    return hints(made, parse_pod(made, MemoryUnit.MiB), lambda name: name == "binpack")


@pytest.mark.parametrize(
    ("limits", "annotations"),
    [
        (HAMI, {"type": "A100", "cards": "binpack", "nodes": "spread", "policy": "binpack"}),
        (HAMI, {"cards": "numa,topology-aware"}),
        ({"tencent.com/vcuda-core": "10", "tencent.com/vcuda-memory": "1"}, {"limit": "80"}),
        (HAMI | {"nvidia.com/priority": "0"}, {}),
        (HAMI | {"nvidia.com/priority": "1"}, {}),
        (HAMI | {"nvidia.com/gpumem": "0", "nvidia.com/gpumem-percentage": "50"}, {}),
        ({"cpu": "1"}, {"type": "A100"}),
    ],
)
def test_what_does_what_it_says_is_not_mentioned(limits: dict[str, object], annotations: dict[str, str]) -> None:
    assert told(limits, **annotations) == ()


@pytest.mark.parametrize(
    ("limits", "annotations", "said"),
    [
        (
            ANY,
            {"type": "A100"},
            "the annotation nvidia.com/use-gputype has no effect on this pod: only containers that request "
            "nvidia.com/gpu follow it",
        ),
        (
            HAMI,
            {"limit": "80"},
            "the annotation tencent.com/vcuda-core-limit has no effect on this pod: only containers that request "
            "tencent.com/vcuda-core follow it",
        ),
        (
            HAMI,
            {"cards": "best"},
            "the annotation hami.io/gpu-scheduler-policy is ignored: best is not one of binpack, spread, "
            "topology-aware",
        ),
        (
            HAMI,
            {"nodes": "best"},
            "the annotation hami.io/node-scheduler-policy is ignored: best is not one of binpack, spread",
        ),
        (
            ANY,
            {"policy": "best"},
            "the annotation fractile.dev/node-policy is ignored: there is no policy best "
            "(docs/operate/node-policies.md lists them)",
        ),
        (
            HAMI | {"nvidia.com/priority": "7"},
            {},
            "container main asks for nvidia.com/priority: 7, which counts as 1: 0 is served first, all other numbers "
            "after it",
        ),
        (
            HAMI | {"nvidia.com/gpumem": "0"},
            {},
            "container main asks for nvidia.com/gpumem: 0, which means all of the card's memory, as without this "
            "resource",
        ),
        (
            {"nvidia.com/gpucore": "30"},
            {},
            "container main asks for nvidia.com/gpucore: Fractile has no such resource; did you mean "
            "nvidia.com/gpucores?",
        ),
    ],
)
def test_what_does_not_is_told_in_one_sentence(
    limits: dict[str, object], annotations: dict[str, str], said: str
) -> None:
    assert told(limits, **annotations) == (said,)
