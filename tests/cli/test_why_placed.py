"""``fractile why`` of pods that are placed; names that are wrong; the forms of its answer."""

import asyncio
import json
from datetime import datetime, timedelta
from pathlib import Path

import click
import msgspec
import pytest
import yaml
from click.testing import CliRunner

from fractile.cli.text import why as why_text
from fractile.cli.why import command
from fractile.errors import FractileError
from fractile.kube import paths
from fractile.main.cli import kubectl_main
from fractile.reports.why import read
from fractile.wire.output.node_usage import ContainerUsage, NodeUsage, SliceUsage, encode
from fractile.wire.output.why import Holding, Use, Why
from tests.fakes.apiserver import FakeApiServer, Fault
from tests.reports.objects import MODEL, card, container, placed, pod, uuid
from tests.reports.why.why_cluster import fill, later, machine, refused, run, submit, text, waiting, why


@pytest.fixture
def filled(server: FakeApiServer) -> FakeApiServer:
    return fill(server)


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
    assert found.notes[0].startswith("what it uses is unknown: the agent of n1 does not say: ")


async def test_a_pod_that_does_not_start_says_what_kubelet_waits_for(filled: FakeApiServer, tmp_path: Path) -> None:
    body = pod("slow", container("main", 100), on="n1", placed=placed("n1", main=(0, 100)), phase="Pending")
    stuck = {"reason": "ImagePullBackOff", "message": "no such image"}
    body["status"]["containerStatuses"] = [{"name": "main", "state": {"waiting": stuck}}]
    submit(filled, body)
    found = await why(filled, tmp_path, "slow")

    assert found.state == "starting"
    assert found.verdict == ("bound to n1, not running yet: container main waits: ImagePullBackOff (no such image)")


@pytest.mark.parametrize("value", ["none", "void"])
async def test_a_container_that_wants_to_see_no_gpu_is_told_that_it_sees_none(
    filled: FakeApiServer, tmp_path: Path, value: str
) -> None:
    asks = container("main", 100) | {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}]}
    submit(filled, pod("blind", asks, on="n1", placed=placed("n1", main=(0, 100))))
    sidecar = {"name": "log", "env": asks["env"]}
    submit(filled, pod("seeing", container("main", 100), sidecar, on="n2", placed=placed("n2", main=(0, 100))))

    assert (
        f"container main asks for GPUs and sets NVIDIA_VISIBLE_DEVICES to {value}, so it will see no GPU; remove the "
        "variable: Fractile sets it to the GPUs that the container gets"
    ) in (await why(filled, tmp_path, "blind")).notes
    assert [n for n in (await why(filled, tmp_path, "seeing")).notes if "NVIDIA_VISIBLE_DEVICES" in n] == []


async def test_an_agent_that_hangs_is_not_waited_for(
    filled: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "_ANSWER", 0.2)
    filled.inject(Fault(path="/proxy/v1/usage", delay=60.0, times=9))
    found = await why(filled, tmp_path, "on-n1")

    assert found.notes == ("what it uses is unknown: the agent of n1 has not answered in 0.2 s",)
    assert found.holds[0].use is None


async def test_a_placement_that_is_not_believed_is_a_note(filled: FakeApiServer, tmp_path: Path) -> None:
    submit(filled, pod("liar", container("main", 4069), on="n1", placed=placed("n1", main=(0, 1))))
    found = await why(filled, tmp_path, "liar")

    assert found.holds == ()
    assert any("Fractile rejects" in note for note in found.notes)


async def test_a_pod_that_is_over_holds_nothing(filled: FakeApiServer, tmp_path: Path) -> None:
    body = pod("old", container("main", 100), on="n1", placed=placed("n1", main=(0, 100)), phase="Failed")
    body["status"] |= {"reason": "UnexpectedAdmissionError", "message": "no card"}
    submit(filled, body)
    found = await why(filled, tmp_path, "old")

    assert found.verdict == "it has ended (Failed: UnexpectedAdmissionError: no card) and holds nothing"
    assert found.holds == ()


async def test_a_pod_that_leaves_keeps_its_cards(filled: FakeApiServer, tmp_path: Path) -> None:
    body = pod("old", container("main", 100), on="n1", placed=placed("n1", main=(0, 100)))
    body["metadata"]["deletionTimestamp"] = "2026-11-21T05:00:00Z"
    submit(filled, body)

    assert (await why(filled, tmp_path, "old")).verdict == (
        "it is being deleted on n1; it keeps its cards until it is gone"
    )


async def test_a_pod_that_leaves_is_told_since_when_and_not_as_if_it_had_left_since_it_was_created(
    filled: FakeApiServer,
) -> None:
    """The API server adds the grace period to the time at which the deletion was asked for."""
    uid = submit(filled, pod("old", container("main", 100), on="n1", placed=placed("n1", main=(0, 100))))
    created = datetime.fromisoformat(filled.get(paths.pod("default", "old"))["metadata"]["creationTimestamp"])
    ends = f"{created + timedelta(seconds=62 + 30):%Y-%m-%dT%H:%M:%SZ}"
    going = {"deletionTimestamp": ends, "deletionGracePeriodSeconds": 30}
    filled.merge(paths.pod("default", "old"), {"metadata": going})
    found = await later(filled, "old", seconds=76)

    assert (found.uid, found.verdict) == (
        uid,
        "it is being deleted on n1, requested 14s ago; it keeps its cards until it is gone",
    )
    assert why_text.text(found).startswith("default/old: leaving (created 1m16s ago)\n")


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


async def test_events_that_say_the_same_share_a_row_of_the_table(filled: FakeApiServer, tmp_path: Path) -> None:
    uid = submit(filled, waiting("large", container("main", 10_000)))
    for name, last, count, message in (
        ("e1", "2026-11-21T04:00:01Z", 2, "no node"),
        ("e2", "2026-11-21T04:05:00Z", 1, "something else"),
        ("e3", "2026-11-21T04:06:00Z", 3, "no node"),
    ):
        event = {
            "metadata": {"name": name, "namespace": "default"},
            "involvedObject": {"name": "large", "uid": uid},
            "reason": "FailedScheduling",
            "type": "Warning",
            "message": message,
            "count": count,
            "lastTimestamp": last,
            "source": {"component": "default-scheduler"},
        }
        filled.create(paths.events("default"), event)
    rows = [line.split() for line in (await text(filled, tmp_path, "large")).splitlines() if "FailedScheduling" in line]

    assert [row[1:] for row in rows] == [
        ["5", "FailedScheduling", "default-scheduler", "no", "node"],
        ["1", "FailedScheduling", "default-scheduler", "something", "else"],
    ]
    assert [e.count for e in (await why(filled, tmp_path, "large")).events] == [3, 1, 2]


async def test_a_pod_that_does_not_exist_is_looked_for_elsewhere(filled: FakeApiServer, tmp_path: Path) -> None:
    assert await refused(filled, tmp_path, "missing") == (
        "there is no pod 'missing' in namespace default; if a workload should have created it, these events say why it "
        "did not: kubectl get events -n default --field-selector reason=FailedCreate"
    )
    assert await refused(filled, tmp_path, "on-n1", "-n", "team") == (
        "there is no pod 'on-n1' in namespace team; there is one in default (-n)"
    )


GONE = "there is no pod 'thief' in namespace default"


UNKNOWN = f"{GONE} any more; it was deleted or has ended, and no event says why; for all of its events: kubectl get "


def said(
    server: FakeApiServer, reason: str, when: str, *, kind: str = "Pod", type: str = "Warning", uid: str = "a-uid"
) -> None:
    """An event about something of the name."""
    event = {
        "metadata": {"name": f"thief.{kind}.{reason}.{uid}".lower(), "namespace": "default"},
        "involvedObject": {"kind": kind, "name": "thief", "uid": uid},
        "reason": reason,
        "type": type,
        "message": f"{reason} says so",
        "lastTimestamp": f"2026-11-21T04:00:{when}Z",
    }
    server.create(paths.events("default"), event)


async def test_of_a_pod_that_was_evicted_its_eviction_is_told(filled: FakeApiServer, tmp_path: Path) -> None:
    said(filled, "GPUOutsideLedger", "00")
    said(filled, "GPUOutsideLedgerEvicted", "01")
    said(filled, "FailedKillPod", "02")
    said(filled, "Killing", "03", type="Normal")

    assert await refused(filled, tmp_path, "thief") == (
        f"{GONE} any more; GPUOutsideLedgerEvicted at 2026-11-21T04:00:01Z: GPUOutsideLedgerEvicted says so; for all "
        "of its events: kubectl get events -n default --field-selector "
        "involvedObject.kind=Pod,involvedObject.name=thief"
    )


async def test_of_a_pod_that_is_gone_what_ended_it_is_told_and_not_what_came_later(
    filled: FakeApiServer, tmp_path: Path
) -> None:
    said(filled, "Preempted", "02", type="Normal")
    said(filled, "FailedScheduling", "01")
    said(filled, "BackOff", "03")
    said(filled, "Killing", "04", type="Normal")

    assert (await refused(filled, tmp_path, "thief")).startswith(f"{GONE} any more; Preempted at ")


@pytest.mark.parametrize("reason", ["Pulled", "Killing", "BackOff", "GPUOutsideLedger"])
async def test_an_event_that_ends_no_pod_is_not_called_the_reason(
    filled: FakeApiServer, tmp_path: Path, reason: str
) -> None:
    said(filled, reason, "01", type="Normal")
    assert (await refused(filled, tmp_path, "thief")).startswith(UNKNOWN)


async def test_what_ended_an_earlier_pod_of_the_name_is_not_told(filled: FakeApiServer, tmp_path: Path) -> None:
    said(filled, "GPUOutsideLedgerEvicted", "01", uid="earlier")
    said(filled, "Pulled", "02", type="Normal", uid="a-later-one")

    assert (await refused(filled, tmp_path, "thief")).startswith(UNKNOWN)


async def test_of_two_pods_that_overlapped_the_one_that_began_later_counts(
    filled: FakeApiServer, tmp_path: Path
) -> None:
    said(filled, "GPUOutsideLedger", "01", uid="deleted-by-force")
    said(filled, "Pulled", "02", type="Normal", uid="its-successor")
    said(filled, "GPUOutsideLedgerKilled", "03", uid="deleted-by-force")

    assert (await refused(filled, tmp_path, "thief")).startswith(UNKNOWN)


async def test_what_was_said_of_another_object_of_that_name_is_not_told(filled: FakeApiServer, tmp_path: Path) -> None:
    said(filled, "FailedCreate", "01", kind="Job")
    assert (await refused(filled, tmp_path, "thief")).startswith(f"{GONE}; if a workload should have created it")


async def test_events_that_may_not_be_read_are_left_out(filled: FakeApiServer, tmp_path: Path) -> None:
    said(filled, "GPUOutsideLedgerEvicted", "01")
    filled.inject(Fault(path="/events", status=403, times=9))
    assert (await refused(filled, tmp_path, "thief")).startswith(f"{GONE}; if a workload should have created it")


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
    assert capsys.readouterr().out.startswith("default/on-n1: running (created ")
