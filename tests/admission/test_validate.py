"""Whether a pod may be stored, and what whoever sent it is told."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import astuple

from fractile.admission.capacity import ClusterCapacity, ClusterFit
from fractile.admission.validate import AdmissionVerdict, Privileged, judge
from fractile.ledger.classes import ClassIndex, resolve
from fractile.model.units import MemoryUnit
from fractile.wire.kubernetes.admission import (
    LONGEST_WARNING,
    EnvVar,
    GuardedContainer,
    GuardedPod,
    GuardedSpec,
    SecurityContext,
)
from fractile.wire.kubernetes.objects import Pod
from tests.admission.world import HCA, K80, NIC, P4, PAIR, PART, ledger
from tests.builders import container, pod

NOBODY = GuardedPod()
MAIN = GuardedPod(GuardedSpec([GuardedContainer("main", SecurityContext(True))]))
GPU, DEVICE = "fractile.dev/gpu", "fractile.dev/device"

VISIBLE = "NVIDIA_VISIBLE_DEVICES"


def blind(value: str, name: str = "main", variable: str = VISIBLE) -> GuardedPod:
    """With a container that sets the variable."""
    return GuardedPod(GuardedSpec([GuardedContainer(name, None, [EnvVar(variable, value)])]))


@pytest.fixture
def cluster() -> ClusterFit:
    """Two cards of 16276 MiB, and classes."""
    made = ledger()
    index = ClassIndex(made)
    for one in (K80, PAIR, PART, HCA, NIC, P4):
        index.put(one)
    return ClusterCapacity(made, lambda request: resolve(request, index))


def verdict(given: Pod, cluster: ClusterFit | None, guarded: GuardedPod = NOBODY, **more: Any) -> AdmissionVerdict:
    return judge(given, guarded, cluster=cluster, unit=MemoryUnit.MiB, **more)


def by(limits: dict[str, object], **fields: Any) -> Pod:
    return pod("p", container(limits=limits), **fields)


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({"cpu": "1"}, id="nothing of ours"),
        pytest.param({"aliyun.com/gpu-mem": "16276"}, id="a card's memory"),
        pytest.param({"aliyun.com/gpu-count": "2"}, id="both cards"),
        pytest.param({"class.fractile.dev/part": "2", GPU: "2"}, id="parts of a class"),
        pytest.param({"class.fractile.dev/p4": "1", GPU: "1"}, id="the one card of a class"),
        pytest.param({"class.fractile.dev/nic": "1", DEVICE: "1"}, id="another device"),
        pytest.param(
            {"class.fractile.dev/nic": "1", DEVICE: "1", "class.fractile.dev/part": "1", GPU: "1"}, id="both kinds"
        ),
    ],
)
def test_what_can_be_served_passes_without_a_word(cluster: ClusterFit, limits: dict[str, object]) -> None:
    assert verdict(by(limits), cluster) == AdmissionVerdict()


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        pytest.param(
            {"aliyun.com/gpu-mem": 1, "nvidia.com/gpu": 1},
            "container main asks for aliyun.com/gpu-mem and nvidia.com/gpu; use the names of one family only",
            id="two families",
        ),
        pytest.param(
            {"tencent.com/vcuda-core": 150},
            "container main asks for 150 tencent.com/vcuda-core; above 100, only multiples of 100 are allowed: whole "
            "cards",
            id="no sense",
        ),
        pytest.param({"nvidia.com/gpu": "1.5"}, "container main asks for nvidia.com/gpu: '1.5' is not", id="a half"),
        pytest.param(
            {"class.fractile.dev/pair": 1, GPU: 1},
            "container main asks for class.fractile.dev/pair: 1 and fractile.dev/gpu: 1; write fractile.dev/gpu: 2",
            id="too few slots",
        ),
        pytest.param({DEVICE: 1}, "container main asks for fractile.dev/device without a class", id="a device"),
    ],
)
def test_what_can_never_work_is_refused_with_a_sentence(
    cluster: ClusterFit, limits: dict[str, object], says: str
) -> None:
    assert verdict(by(limits), cluster).refusal.startswith(says)


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        pytest.param(
            {"aliyun.com/gpu-mem": 100_000},
            "no node can serve this pod, even if it were empty: 100000 MiB requested on one card, the largest card "
            "here has 16276 MiB (node n1)",
            id="more memory than any card has",
        ),
        pytest.param(
            {"aliyun.com/gpu-count": 3},
            "no node can serve this pod, even if it were empty: 3 whole cards requested, the node has 2 (node n1)",
            id="more cards than any node has",
        ),
        pytest.param(
            {"class.fractile.dev/p4": 2, GPU: 2},
            "no node can serve this pod, even if it were empty: class p4: the node has 1 matching card, 2 requested "
            "(node n2)",
            id="more of a class than any node has",
        ),
        pytest.param(
            {"class.fractile.dev/nic": 2, DEVICE: 2},
            "no node can serve this pod, even if it were empty: class nic: 2 requested, the node has 1 (node n1)",
            id="more other devices than any node has",
        ),
        pytest.param(
            {"class.fractile.dev/nic": 1, DEVICE: 1, "class.fractile.dev/p4": 1, GPU: 1},
            "no node can serve this pod",
            id="both on one node, which has not both",
        ),
        pytest.param(
            {"class.fractile.dev/later": 1, GPU: 1},
            "container main asks for class later, which does not exist; the pod waits",
            id="a class that may come",
        ),
        pytest.param(
            {"class.fractile.dev/mellanox.hca": 1, DEVICE: 1},
            "container main asks for class mellanox.hca, and no healthy device of the cluster matches it; "
            "the pod waits",
            id="a class that is empty",
        ),
    ],
)
def test_what_cannot_work_today_is_warned_of(cluster: ClusterFit, limits: dict[str, object], says: str) -> None:
    refusal, (warning,) = astuple(verdict(by(limits), cluster))
    assert refusal == ""
    assert warning.startswith(says)
    assert verdict(by(limits), None) == AdmissionVerdict(), "nothing is said of a cluster that is not known yet"


@pytest.mark.parametrize(
    "annotation", ["fractile.dev/placement", "fractile.dev/kubelet-choice", "fractile.dev/isolation-state"]
)
def test_a_user_writes_nothing_that_is_ours(cluster: ClusterFit, annotation: str) -> None:
    given = by({"aliyun.com/gpu-mem": 1}, annotations={annotation: "{}"})
    assert verdict(given, cluster, groups=["system:masters"]).refusal == (
        f"the annotation {annotation} is written by Fractile alone, when it places the pod; remove it"
    )
    assert verdict(given, cluster, groups=["fractile:control-plane"]).refusal == ""
    assert verdict(by({"cpu": 1}, annotations={annotation: "{}"}), cluster).refusal, "not even on pods without GPUs"


def test_a_pod_that_names_its_node_is_refused_unless_it_is_the_picture_of_a_static_one(cluster: ClusterFit) -> None:
    assert verdict(by({"aliyun.com/gpu-mem": 1}, node="n1"), cluster).refusal.startswith(
        "the pod asks for GPUs and sets spec.nodeName to n1, so no scheduler would choose its cards; remove "
        "spec.nodeName"
    )
    static = by({"aliyun.com/gpu-mem": 1}, node="n1", annotations={"kubernetes.io/config.mirror": "x"})
    assert verdict(static, cluster, groups=["system:nodes", "system:authenticated"]).refusal == ""
    assert verdict(by({"cpu": 1}, node="n1"), cluster) == AdmissionVerdict()


def test_it_is_taken_where_an_administrator_allows_it_and_judged_as_any_other(cluster: ClusterFit) -> None:
    assert verdict(by({"aliyun.com/gpu-mem": 1}, node="n1"), cluster, names_node=True) == AdmissionVerdict()
    forged = by({"aliyun.com/gpu-mem": 1}, node="n1", annotations={"fractile.dev/placement": "{}"})
    assert "written by Fractile alone" in verdict(forged, cluster, names_node=True).refusal
    privileged = verdict(by({"aliyun.com/gpu-mem": 1}, node="n1"), cluster, MAIN, names_node=True)
    assert "is privileged" in privileged.refusal


@pytest.mark.parametrize("groups", [[], ["system:masters"], ["system:serviceaccounts"]])
def test_the_mark_of_a_static_pod_is_believed_from_kubelets_only(cluster: ClusterFit, groups: list[str]) -> None:
    """As by the policy node-name.fractile.dev: the mark is an annotation, which a user can write too."""
    forged = by({"aliyun.com/gpu-mem": 1}, node="n1", annotations={"kubernetes.io/config.mirror": "x"})
    assert "sets spec.nodeName to n1" in verdict(forged, cluster, groups=groups).refusal


@pytest.mark.parametrize(
    ("what", "refused", "warned"),
    [(Privileged.REFUSE, True, False), (Privileged.WARN, False, True), (Privileged.ALLOW, False, False)],
)
def test_privileged_containers_with_gpus(cluster: ClusterFit, what: Privileged, refused: bool, warned: bool) -> None:
    found = verdict(by({"aliyun.com/gpu-mem": 1}), cluster, MAIN, privileged=what)
    sentence = "container main asks for GPUs and is privileged, so it would see all cards of its node without limits"
    assert found.refusal.startswith(sentence) is refused
    assert any(w.startswith(sentence) for w in found.warnings) is warned


def test_only_containers_with_gpus_may_not_be_privileged(cluster: ClusterFit) -> None:
    other = pod("p", container("gpu", memory=1), container("main"))
    assert verdict(other, cluster, MAIN) == AdmissionVerdict()
    hca = by({"class.fractile.dev/mellanox.hca": 1, DEVICE: 1})
    assert verdict(hca, cluster, MAIN).refusal == "", "non-GPU devices have no limits"


@pytest.mark.parametrize("value", ["none", "void"])
def test_a_container_that_asks_for_gpus_and_says_that_it_wants_none_is_warned_of(
    cluster: ClusterFit, value: str
) -> None:
    """What a specification says wins over what the agent says."""
    said = blind(value)
    refusal, (warning,) = astuple(verdict(by({"aliyun.com/gpu-mem": 1}), cluster, said))
    assert (refusal, warning) == (
        "",
        f"container main asks for GPUs and sets NVIDIA_VISIBLE_DEVICES to {value}, so it will see no GPU; remove the "
        "variable: Fractile sets it to the GPUs that the container gets",
    )
    long = pod("p", container("c" * 63, memory=1))
    (warning,) = verdict(long, cluster, blind(value, "c" * 63)).warnings
    assert len(warning) <= LONGEST_WARNING, "the API server would cut it"
    later = verdict(by({"class.fractile.dev/later": 1, GPU: 1}), cluster, said)
    assert [w.rpartition(" ")[2] for w in later.warnings] == ["waits", "gets"], "both are said"


def test_only_what_counts_of_that_variable_is_warned_of(cluster: ClusterFit) -> None:
    given = by({"aliyun.com/gpu-mem": 1})
    assert verdict(given, cluster, blind("none", "other")) == AdmissionVerdict(), "a container without GPUs"
    assert verdict(given, cluster, blind("none", variable="CUDA_VERSION")) == AdmissionVerdict()
    twice = GuardedPod(GuardedSpec([GuardedContainer("main", None, [EnvVar(VISIBLE, v) for v in ("none", "all")])]))
    assert verdict(given, cluster, twice) == AdmissionVerdict(), "of two the last counts"
    assert verdict(by({"class.fractile.dev/nic": 1, DEVICE: 1}), cluster, blind("none")) == AdmissionVerdict()


def test_a_family_that_somebody_else_serves_is_not_judged(cluster: ClusterFit) -> None:
    given = msgspec.structs.replace(by({"nvidia.com/gpu": "1", "aliyun.com/gpu-mem": 1}))
    assert verdict(given, cluster, dialects=frozenset({"tencent"})) == AdmissionVerdict()
