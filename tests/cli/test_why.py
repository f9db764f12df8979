"""``fractile why`` as a person runs it, on a cluster at the wire."""

import asyncio
import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
import yaml
from click.testing import CliRunner, Result

from fractile.cli.why import command
from fractile.cli.why_read import read
from fractile.cli.why_report import report
from fractile.errors import FractileError, SetupError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.main.cli import kubectl_main
from fractile.wire.node_usage import ContainerUsage, NodeUsage, SliceUsage, encode
from fractile.wire.quota_file import DEFAULT_SOURCE, KEY
from fractile.wire.resource_class import GPU_SLOT, resource_name
from fractile.wire.why import Holding, NodeGroup, Use, Why, decode
from tests.cli.objects import MEMORY, MODEL, card, container, node, placed, pod, uuid
from tests.fakes.apiserver import FakeApiServer, Fault

Body = dict[str, Any]
REFUSED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}

TOO_LITTLE = "10000 MiB asked on one card, the most free on one is 8138 MiB (card 0; 8138 MiB free on 1 card together)"


def machine(name: str, *, cpu: str = "8", taint: bool = False) -> Body:
    made = node(name, gpu_mem=MEMORY)
    made["status"]["allocatable"] = {"cpu": cpu, "memory": "64Gi", "pods": "110"}
    if taint:
        made["spec"] = {"taints": [{"key": "team", "value": "b", "effect": "NoSchedule"}]}
    return made


def waiting(name: str, *containers: Body, seen: bool = True, **spec: Any) -> Body:
    """A pod that kube-scheduler has refused, or that it has never looked at."""
    made = pod(name, *containers)
    made["spec"] |= {"schedulerName": "default-scheduler"} | spec
    made["status"] |= {"conditions": [REFUSED]} if seen else {}
    return made


@pytest.fixture
def filled(server: FakeApiServer) -> FakeApiServer:
    """n1 and n2 with a card each, of which 8138 MiB are free; n3 with an empty card and a taint."""
    for name in ("n1", "n2", "n3"):
        server.create(paths.nodes(), machine(name, taint=name == "n3"))
        server.create(paths.extended_resources(), card(name, 0))
    for name in ("n1", "n2"):
        held = placed(name, main=(0, 8138))
        server.create(paths.pods("default"), pod(f"on-{name}", container("main", 8138), on=name, placed=held))
    return server


async def run(server: FakeApiServer, folder: Path, *args: str) -> Result:
    arguments = ["--kubeconfig", str(server.write_kubeconfig(folder / "kubeconfig")), *args]
    return await asyncio.to_thread(CliRunner().invoke, command, arguments)


async def text(server: FakeApiServer, folder: Path, *args: str) -> str:
    result = await run(server, folder, *args)
    assert result.exception is None, result.exception
    return result.output


async def why(server: FakeApiServer, folder: Path, *args: str) -> Why:
    return decode(await text(server, folder, *args, "-o", "json"))


async def refused(server: FakeApiServer, folder: Path, *args: str) -> str:
    result = await run(server, folder, *args)
    assert isinstance(result.exception, SetupError), result.output
    return str(result.exception)


async def later(server: FakeApiServer, name: str, *, seconds: float) -> Why:
    """What it says when the pod is so old."""
    async with KubeClient(server.credentials()) as client:
        found = await read(client, "default", name)
    created = datetime.fromisoformat(found.pod.metadata.creation_timestamp or "")
    return report(found, created + timedelta(seconds=seconds), source=DEFAULT_SOURCE)


def submit(server: FakeApiServer, body: Body) -> str:
    """The pod's UID."""
    uid: str = server.create(paths.pods("default"), body)["metadata"]["uid"]
    return uid


# ── pods that wait ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_nodes_are_grouped_by_the_filters_sentences_and_each_change_was_tried(
    filled: FakeApiServer, tmp_path: Path
) -> None:
    submit(filled, waiting("large", container("main", 10_000)))
    found = await why(filled, tmp_path, "large")
    changes = {c.change: (c.sentence, c.node) for c in found.changes}

    assert found.groups == (
        NodeGroup(
            nodes=("n1", "n2"),
            reasons=(TOO_LITTLE,),
            waiting_helps=True,
        ),
        NodeGroup(nodes=("n3",), reasons=("taint team=b:NoSchedule that it does not tolerate",), waiting_helps=False),
    )
    assert changes == {
        "tolerate": ("tolerate the taint team=b:NoSchedule", "n3"),
        "smaller-part": ("take 8138 MiB of 1 GPU instead of 10000 MiB of 1 GPU", changes["smaller-part"][1]),
        "one-more-node": changes["one-more-node"],
    }
    assert found.verdict.endswith(f"none of 3 nodes takes it; 2 of them: {TOO_LITTLE}")


async def test_the_text_has_the_verdict_first(filled: FakeApiServer, tmp_path: Path) -> None:
    submit(filled, waiting("large", container("main", 10_000)))
    lines = (await text(filled, tmp_path, "large")).splitlines()

    assert lines[0].startswith("default/large: pending for ")
    assert lines[1].startswith("  none of 3 nodes takes it; 2 of them: ")
    assert "  asks: 10000 MiB in main (aliyun.com/gpu-mem)" in lines
    assert "  scheduler default-scheduler, which has tried: 0/3 nodes are available" in lines
    assert "  1 node (n3): taint team=b:NoSchedule that it does not tolerate" in lines
    assert "  would fit: tolerate the taint team=b:NoSchedule (on n3)" in lines


async def test_too_few_cpus_are_said_beside_the_cards(filled: FakeApiServer, tmp_path: Path) -> None:
    body = waiting("busy", container("main", 4069))
    body["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "12"
    submit(filled, body)
    found = await why(filled, tmp_path, "busy")

    assert (found.groups[0].reasons, found.groups[0].waiting_helps) == (("too few CPUs free, 12 asked",), False)
    assert [c.sentence for c in found.changes if c.change == "fewer-cpus"] == ["ask for 8 CPUs instead of 12"]


async def test_a_pod_that_fits_now_is_told_where(filled: FakeApiServer, tmp_path: Path) -> None:
    submit(filled, waiting("small", container("main", 4069)))
    found = await why(filled, tmp_path, "small")

    assert found.fits == ("n1", "n2")
    assert found.verdict == "2 nodes (n1, n2) would take it now by what Fractile knows"
    assert (found.changes, found.notes) == ((), ())


async def test_gates_come_before_everything_else(filled: FakeApiServer, tmp_path: Path) -> None:
    submit(filled, waiting("gated", container("main", 99_999), schedulingGates=[{"name": "example.com/paid"}]))

    assert (await why(filled, tmp_path, "gated")).verdict == (
        "held back by scheduling gates (example.com/paid); nobody schedules it before they are removed"
    )


async def test_a_scheduler_that_nobody_runs_is_named(filled: FakeApiServer) -> None:
    submit(filled, waiting("lost", container("main", 4069), seen=False, schedulerName="fractile-scheduler"))
    early, late = [await later(filled, "lost", seconds=s) for s in (29, 30)]

    assert early.verdict.endswith("would take it now by what Fractile knows; the scheduler has not looked at it yet")
    assert late.verdict == (
        "no scheduler called fractile-scheduler has looked at it; check spec.schedulerName and the profiles of "
        "kube-scheduler"
    )


@pytest.mark.parametrize(("holder", "seconds", "leads"), [("a", 24, True), ("a", 26, False), ("", 0, False)])
async def test_without_a_control_plane_that_leads_nobody_is_placed(
    filled: FakeApiServer, holder: str, seconds: float, leads: bool
) -> None:
    uid = submit(filled, waiting("small", container("main", 4069)))
    created = filled.get(paths.pod("default", "small"))["metadata"]["creationTimestamp"]
    meta = {"name": "fractile-control-plane", "namespace": "fractile-system"}
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": created}
    filled.create(paths.leases("fractile-system"), {"metadata": meta, "spec": spec})
    found = await later(filled, "small", seconds=seconds)

    assert found.uid == uid
    assert found.verdict.startswith("no control plane of Fractile leads") is not leads


async def test_a_nominated_node_is_named(filled: FakeApiServer, tmp_path: Path) -> None:
    body = waiting("urgent", container("main", 16_000))
    body["status"]["nominatedNodeName"] = "n1"
    submit(filled, body)
    found = await why(filled, tmp_path, "urgent")

    assert found.scheduling.nominated == "n1"
    assert found.verdict.startswith("nominated to n1: ")


async def test_a_node_that_fractile_chose_is_told_from_one_by_preemption(filled: FakeApiServer, tmp_path: Path) -> None:
    body = waiting("proposed", container("main", 8138))
    body["status"]["nominatedNodeName"] = "n1"
    body["metadata"]["annotations"] = {"fractile.dev/nominated-node": "n1"}
    submit(filled, body)
    said = (await why(filled, tmp_path, "proposed")).verdict
    assert said.startswith("nominated to n1, which Fractile chose over all nodes")


async def test_a_gate_of_ours_is_explained(filled: FakeApiServer, tmp_path: Path) -> None:
    submit(filled, waiting("held", container("main", 1), schedulingGates=[{"name": "fractile.dev/placement"}]))
    assert (await why(filled, tmp_path, "held")).verdict.startswith("held back until Fractile has chosen its node")


async def test_room_that_is_kept_for_a_nominated_pod_is_not_called_free(filled: FakeApiServer, tmp_path: Path) -> None:
    urgent = waiting("urgent", container("main", 8138), priority=10)
    urgent["status"]["nominatedNodeName"] = "n1"
    submit(filled, urgent)
    submit(filled, waiting("late", container("main", 8138)))
    found = await why(filled, tmp_path, "late")

    assert found.fits == ("n2",)
    assert [g.reasons for g in found.groups if g.nodes == ("n1",)] == [
        ("the room is kept for a pod for which others are being evicted",)
    ]


async def test_a_request_that_makes_no_sense_is_the_verdict(filled: FakeApiServer, tmp_path: Path) -> None:
    submit(filled, waiting("odd", container("main", -1)))
    found = await why(filled, tmp_path, "odd")

    assert "container main asks for aliyun.com/gpu-mem: " in found.verdict
    assert (found.asks, found.groups) == ((), ())


@pytest.mark.parametrize("amount", [8139, 10_000, 16_276])
async def test_a_smaller_part_that_is_named_is_what_the_filter_lets_in_and_a_MiB_more_is_not(
    filled: FakeApiServer, tmp_path: Path, amount: int
) -> None:
    submit(filled, waiting("large", container("main", amount)))
    (change,) = [c for c in (await why(filled, tmp_path, "large")).changes if c.change == "smaller-part"]
    submit(filled, waiting("smaller", container("main", change.to or 0)))
    submit(filled, waiting("one-more", container("main", (change.to or 0) + 1)))

    assert change.node in (await why(filled, tmp_path, "smaller")).fits
    assert (await why(filled, tmp_path, "one-more")).fits == ()


async def test_other_pods_that_wait_change_nothing(filled: FakeApiServer, tmp_path: Path) -> None:
    submit(filled, waiting("another", container("main", 16_000)))
    submit(filled, waiting("large", container("main", 10_000)))
    before = await why(filled, tmp_path, "large")
    filled.delete(paths.pod("default", "another"))
    after = await why(filled, tmp_path, "large")

    assert before.changes == after.changes != ()
    assert "instead of 10000 MiB" in next(c.sentence for c in before.changes if c.change == "smaller-part")


async def test_a_toleration_that_is_named_is_enough(filled: FakeApiServer, tmp_path: Path) -> None:
    tolerated = [{"key": "team", "operator": "Exists", "effect": "NoSchedule"}]
    submit(filled, waiting("large", container("main", 10_000), tolerations=tolerated))

    assert (await why(filled, tmp_path, "large")).fits == ("n3",)


async def test_several_nodes_more_than_the_filter_explains_one_by_one_are_all_explained(
    filled: FakeApiServer, tmp_path: Path
) -> None:
    for number in range(120):
        filled.create(paths.nodes(), machine(f"m{number}"))
        filled.create(paths.extended_resources(), card(f"m{number}", 0, memory="4Gi"))
    submit(filled, waiting("large", container("main", 10_000)))
    found = await why(filled, tmp_path, "large")

    assert [(len(g.nodes), g.waiting_helps) for g in found.groups] == [(120, False), (2, True), (1, False)]
    assert all("the best of" not in reason for g in found.groups for reason in g.reasons)


# ── rules, quota and classes ──────────────────────────────────────────────────────────────────────────────────────────


def quota(server: FakeApiServer, body: str) -> None:
    meta = {"name": "fractile-quota", "namespace": "fractile-system"}
    server.create(paths.config_maps("fractile-system"), {"metadata": meta, "data": {KEY: body}})


def sharing(server: FakeApiServer, text: str) -> None:
    meta = {"name": "fractile-sharing", "namespace": "fractile-system"}
    server.create(paths.config_maps("fractile-system"), {"metadata": meta, "data": {"sharing.yaml": text}})


async def test_how_cards_may_be_cut_counts(filled: FakeApiServer, tmp_path: Path) -> None:
    sharing(filled, "version: 1\ndefault: {maxSlices: 1}\n")
    submit(filled, waiting("small", container("main", 4069)))
    found = await why(filled, tmp_path, "small")

    assert found.fits == ()
    assert "slice" in found.groups[0].reasons[0]
    assert [c.change for c in found.changes] == []


async def test_rules_that_make_no_sense_are_none(filled: FakeApiServer, tmp_path: Path) -> None:
    sharing(filled, "version: 7\n")
    submit(filled, waiting("small", container("main", 4069)))

    assert (await why(filled, tmp_path, "small")).fits == ("n1", "n2")


async def test_a_quota_that_alone_stands_in_the_way_is_the_change(filled: FakeApiServer, tmp_path: Path) -> None:
    quota(filled, '{"default": {"quota": {"V100": 1}}}')
    submit(filled, waiting("more", container("main", 4069)))
    found = await why(filled, tmp_path, "more")

    assert found.verdict == "namespace default may hold 1 V100, holds 1, and this pod takes 0.25"
    assert [(c.change, c.node) for c in found.changes] == [("raise-quota", "n1")]
    assert "may hold 1 V100" in found.groups[0].reasons[0]
    assert "  quota: V100: holds 1 of 1" in await text(filled, tmp_path, "more")


async def test_a_quota_that_was_raised_is_enough(filled: FakeApiServer, tmp_path: Path) -> None:
    quota(filled, '{"default": {"quota": {"V100": 1.25}}}')
    submit(filled, waiting("more", container("main", 4069)))

    assert (await why(filled, tmp_path, "more")).fits == ("n1", "n2")


async def test_a_spoiled_quota_gives_nothing_as_long_as_nothing_was_kept(filled: FakeApiServer, tmp_path: Path) -> None:
    quota(filled, "{")
    submit(filled, waiting("more", container("main", 4069)))
    found = await why(filled, tmp_path, "more")

    assert found.quota.state == "malformed"
    assert "quota ConfigMap fractile-system/fractile-quota: " in found.verdict
    assert found.fits == ()


async def test_no_change_is_named_when_the_quota_is_not_all(filled: FakeApiServer, tmp_path: Path) -> None:
    """The only node with room has a taint, and the quota refuses too: neither alone would help."""
    quota(filled, '{"default": {"quota": {"V100": 1}}}')
    submit(filled, waiting("large", container("main", 10_000)))
    found = await why(filled, tmp_path, "large")

    assert found.changes == ()
    assert found.notes == ("the quota is not all that stands in its way, so no single change was sought",)


async def test_a_quota_that_may_not_be_read_is_a_note(filled: FakeApiServer, tmp_path: Path) -> None:
    filled.inject(Fault(path="configmaps", status=403, times=9))
    submit(filled, waiting("small", container("main", 4069)))
    found = await why(filled, tmp_path, "small")

    assert found.quota.state == "unreadable"
    assert [n for n in found.notes if n.startswith("quotas cannot be read: ")] != []


async def test_a_class_that_is_not_there_is_named(filled: FakeApiServer, tmp_path: Path) -> None:
    submit(filled, waiting("by-class", container("main", 1, resource=GPU_SLOT, more={resource_name("a100"): 1})))
    found = await why(filled, tmp_path, "by-class")

    assert found.verdict == "container main asks for class a100, which does not exist"
    assert [(c.name, c.exists) for c in found.classes] == [("a100", False)]
    assert "  class a100 does not exist" in await text(filled, tmp_path, "by-class")


async def test_a_class_without_its_slot_is_laid_to_the_webhook(filled: FakeApiServer, tmp_path: Path) -> None:
    submit(filled, waiting("bare", container("main", 1, resource=resource_name("a100"))))
    found = await why(filled, tmp_path, "bare")

    assert "Fractile's webhook adds that when the pod is created" in found.verdict
    assert "Fractile's webhook is not registered, so nobody adds what a class needs (docs/webhook.md)" in found.notes


# ── pods that are placed ─────────────────────────────────────────────────────────────────────────────────────────────


def usage(server: FakeApiServer, *, status: int = 200, scheme: str = "") -> None:
    part = SliceUsage(
        uuid=uuid("n1", 0), index=0, limit_bytes=8138 << 20, cores=0, cores_limit=0, used_bytes=600 << 20, refusals=2
    )
    held = ContainerUsage(
        pod_uid=server.get(paths.pod("default", "on-n1"))["metadata"]["uid"],
        namespace="default",
        pod="on-n1",
        container="main",
        enforced=True,
        processes=1,
        cards=(part,),
    )
    body = encode(NodeUsage(node="n1", time=0.0, containers=(held,))) if status == 200 else b""
    server.inject(Fault(path=f"/api/v1/nodes/{scheme}n1:5678/proxy/v1/usage", status=status, body=body))


async def test_a_running_pod_is_told_with_what_it_holds_and_uses(filled: FakeApiServer, tmp_path: Path) -> None:
    usage(filled)
    found = await why(filled, tmp_path, "on-n1")

    assert (found.state, found.verdict) == ("running", "runs on n1")
    assert found.holds == (
        Holding(
            container="main",
            role="app",
            card=uuid("n1", 0),
            index=0,
            model=MODEL,
            memory_mib=8138,
            cores_percent=0,
            use=Use(used_mib=600, peak_mib=None, busy_percent=None, refusals=2),
        ),
    )
    assert (found.fits, found.groups, found.changes) == ((), (), ())


async def test_an_agent_that_answers_over_tls_is_asked_so(filled: FakeApiServer, tmp_path: Path) -> None:
    usage(filled, status=502)
    usage(filled, scheme="https:")
    found = await why(filled, tmp_path, "on-n1")

    assert [h.use is not None for h in found.holds] == [True]
    assert found.notes == ()


async def test_an_agent_that_does_not_answer_costs_only_the_use(filled: FakeApiServer, tmp_path: Path) -> None:
    usage(filled, status=403)
    found = await why(filled, tmp_path, "on-n1")

    assert [h.use for h in found.holds] == [None]
    assert found.notes[0].startswith("what it uses is not known, the agent of n1 does not say: ")


async def test_a_pod_that_does_not_start_says_what_kubelet_waits_for(filled: FakeApiServer, tmp_path: Path) -> None:
    body = pod("slow", container("main", 100), on="n1", placed=placed("n1", main=(0, 100)), phase="Pending")
    stuck = {"reason": "ImagePullBackOff", "message": "no such image"}
    body["status"]["containerStatuses"] = [{"name": "main", "state": {"waiting": stuck}}]
    submit(filled, body)
    found = await why(filled, tmp_path, "slow")

    assert found.state == "starting"
    assert found.verdict == ("bound to n1, not running yet: container main waits: ImagePullBackOff (no such image)")


async def test_a_placement_that_is_not_believed_is_a_note(filled: FakeApiServer, tmp_path: Path) -> None:
    submit(filled, pod("liar", container("main", 4069), on="n1", placed=placed("n1", main=(0, 1))))
    found = await why(filled, tmp_path, "liar")

    assert found.holds == ()
    assert any("does not believe" in note for note in found.notes)


async def test_a_pod_that_is_over_holds_nothing(filled: FakeApiServer, tmp_path: Path) -> None:
    body = pod("old", container("main", 100), on="n1", placed=placed("n1", main=(0, 100)), phase="Failed")
    body["status"] |= {"reason": "UnexpectedAdmissionError", "message": "no card"}
    submit(filled, body)
    found = await why(filled, tmp_path, "old")

    assert found.verdict == "it is over (Failed: UnexpectedAdmissionError: no card) and holds nothing"
    assert found.holds == ()


async def test_a_pod_that_leaves_keeps_its_cards(filled: FakeApiServer, tmp_path: Path) -> None:
    body = pod("old", container("main", 100), on="n1", placed=placed("n1", main=(0, 100)))
    body["metadata"]["deletionTimestamp"] = "2026-11-21T05:00:00Z"
    submit(filled, body)

    assert (await why(filled, tmp_path, "old")).verdict == (
        "it is being deleted on n1; until it is gone it keeps its cards"
    )


# ── what it is asked ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_events_of_this_pod_are_shown_the_newest_first(filled: FakeApiServer, tmp_path: Path) -> None:
    uid = submit(filled, waiting("large", container("main", 10_000)))
    for name, about, last, message in (
        ("e1", uid, "2026-11-21T04:00:01Z", "first"),
        ("e2", uid, "2026-11-21T04:05:00Z", "second"),
        ("e3", "uid-of-an-earlier-pod", "2026-11-21T04:06:00Z", "not ours"),
    ):
        event = {
            "metadata": {"name": name, "namespace": "default"},
            "involvedObject": {"name": "large", "uid": about},
            "reason": "FailedScheduling",
            "type": "Warning",
            "message": message,
            "count": 3,
            "lastTimestamp": last,
            "source": {"component": "default-scheduler"},
        }
        filled.create(paths.events("default"), event)
    found = await why(filled, tmp_path, "large")

    assert [(e.message, e.count, e.source) for e in found.events] == [
        ("second", 3, "default-scheduler"),
        ("first", 3, "default-scheduler"),
    ]
    assert (await text(filled, tmp_path, "large")).splitlines()[-1].endswith("default-scheduler  first")


async def test_a_pod_that_does_not_exist_is_looked_for_elsewhere(filled: FakeApiServer, tmp_path: Path) -> None:
    assert await refused(filled, tmp_path, "nobody") == "there is no pod 'nobody' in namespace default"
    assert await refused(filled, tmp_path, "on-n1", "-n", "team") == (
        "there is no pod 'on-n1' in namespace team; there is one in default (-n)"
    )


async def test_a_pod_that_asks_for_no_gpu_is_told_so(filled: FakeApiServer, tmp_path: Path) -> None:
    submit(filled, pod("plain", {"name": "main"}))

    assert "asks for no GPU" in await refused(filled, tmp_path, "plain")


async def test_a_pod_of_a_family_that_nobody_serves_is_somebody_elses(server: FakeApiServer, tmp_path: Path) -> None:
    server.create(paths.nodes(), machine("n1"))
    server.create(paths.extended_resources(), card("n1", 0, dialects="aliyun"))
    server.create(paths.pods("default"), waiting("other", container("main", 1, resource="nvidia.com/gpu")))

    assert "family nvidia, which no agent of this cluster serves" in await refused(server, tmp_path, "other")


async def test_a_cluster_without_cards_is_told(server: FakeApiServer, tmp_path: Path) -> None:
    server.create(paths.nodes(), machine("n1"))
    server.create(paths.pods("default"), waiting("any", container("main", 1)))

    assert "the cluster has no cards" in await refused(server, tmp_path, "any")


async def test_the_namespace_may_stand_before_the_name(filled: FakeApiServer, tmp_path: Path) -> None:
    assert (await why(filled, tmp_path, "default/on-n1")).pod == "on-n1"
    assert (await why(filled, tmp_path, "pod/on-n1")).pod == "on-n1"
    result = await run(filled, tmp_path, "default/on-n1", "-n", "team")

    assert result.exit_code == 2
    assert "name two namespaces" in result.output


async def test_the_namespace_is_the_contexts_when_none_is_given(filled: FakeApiServer, tmp_path: Path) -> None:
    file = filled.write_kubeconfig(tmp_path / "kubeconfig")
    config = yaml.safe_load(file.read_text())
    for each in config["contexts"]:
        each["context"]["namespace"] = "team"
    file.write_text(yaml.safe_dump(config))
    result = await asyncio.to_thread(CliRunner().invoke, command, ["--kubeconfig", str(file), "on-n1"])

    assert str(result.exception) == "there is no pod 'on-n1' in namespace team; there is one in default (-n)"


@pytest.mark.parametrize("name", ["../nodes/n1", "A", "a b", "a/b/c", ""])
async def test_what_is_no_name_is_refused(filled: FakeApiServer, tmp_path: Path, name: str) -> None:
    result = await run(filled, tmp_path, name)

    assert isinstance(result.exception, FractileError), result.output
    assert "is not a Kubernetes name" in str(result.exception)


async def test_pods_are_completed_with_their_namespace(
    filled: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(filled.write_kubeconfig(tmp_path / "kubeconfig")))
    ctx = click.Context(command)
    (argument,) = [p for p in command.params if p.name == "pod"]
    found = await asyncio.to_thread(argument.shell_complete, ctx, "default/on")

    assert [item.value for item in found] == ["default/on-n1", "default/on-n2"]


async def test_nothing_is_written(filled: FakeApiServer, tmp_path: Path) -> None:
    submit(filled, waiting("large", container("main", 10_000)))
    await text(filled, tmp_path, "large")

    assert filled.writes() == []


async def test_the_json_has_its_schema_first(filled: FakeApiServer, tmp_path: Path) -> None:
    body = json.loads(await text(filled, tmp_path, "on-n1", "-o", "json"))

    assert next(iter(body.items())) == ("schema", "fractile.dev/why/v1")
    assert set(body) == {f.encode_name for f in msgspec.structs.fields(Why)}


async def test_kubectl_fractile_why_is_the_same(
    filled: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kubeconfig = str(filled.write_kubeconfig(tmp_path / "kubeconfig"))
    monkeypatch.setattr("sys.argv", ["kubectl-fractile", "why", "on-n1", "--kubeconfig", kubeconfig])
    with pytest.raises(SystemExit) as end:
        await asyncio.to_thread(kubectl_main)

    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("default/on-n1: running for ")
