"""``fractile why`` of pods that wait, as a person runs it, on a cluster at the wire."""

from pathlib import Path

import pytest

from fractile.kube import paths
from fractile.wire.files.quota_file import KEY
from fractile.wire.fractile.resource_class import GPU_SLOT, resource_name
from fractile.wire.output.why import RefusingNodes
from tests.fakes.apiserver import FakeApiServer, Fault
from tests.reports.objects import card, container, placed, pod
from tests.reports.why.why_cluster import REFUSED, fill, later, machine, refused, submit, text, waiting, why

TOO_LITTLE = (
    "10000 MiB requested on one card, the most free on one is 8138 MiB (card 0; 8138 MiB free on 1 card together)"
)


@pytest.fixture
def filled(server: FakeApiServer) -> FakeApiServer:
    return fill(server)


# ── pods that wait ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_nodes_are_grouped_by_the_filters_sentences_and_each_change_was_tried(
    filled: FakeApiServer, tmp_path: Path
) -> None:
    submit(filled, waiting("large", container("main", 10_000)))
    found = await why(filled, tmp_path, "large")
    changes = {c.change: (c.sentence, c.node) for c in found.changes}

    assert found.groups == (
        RefusingNodes(
            nodes=("n1", "n2"),
            reasons=(TOO_LITTLE,),
            waiting_helps=True,
        ),
        RefusingNodes(
            nodes=("n3",), reasons=("taint team=b:NoSchedule that it does not tolerate",), waiting_helps=False
        ),
    )
    assert changes == {
        "tolerate": ("tolerate the taint team=b:NoSchedule", "n3"),
        "smaller-part": ("ask for aliyun.com/gpu-mem: 8138 instead of 10000", changes["smaller-part"][1]),
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

    assert (found.groups[0].reasons, found.groups[0].waiting_helps) == (("too few CPUs free, 12 requested",), False)
    assert [c.sentence for c in found.changes if c.change == "fewer-cpus"] == ["ask for 8 CPUs instead of 12"]


async def test_a_pod_that_fits_now_is_told_where(filled: FakeApiServer, tmp_path: Path) -> None:
    submit(filled, waiting("small", container("main", 4069)))
    found = await why(filled, tmp_path, "small")

    assert found.fits == ("n1", "n2")
    assert found.verdict == "2 nodes (n1, n2) would take it now, as far as Fractile can tell"
    assert (found.changes, found.notes) == ((), ())


@pytest.mark.parametrize(
    ("said", "repeated"),
    [
        ("0/3 nodes are available: 3 Insufficient nvidia.com/gpucore. preemption: 0/3 nodes are available: 3 No", "3 "
         "Insufficient nvidia.com/gpucore"),
        ("0/3 nodes are available: 1 Insufficient cpu, 2 Insufficient ephemeral-storage.", "2 Insufficient "
         "ephemeral-storage"),
        ("0/3 nodes are available: 3 Insufficient hugepages-2Mi.", "3 Insufficient hugepages-2Mi"),
        ("0/3 nodes are available: 2 Insufficient tencent.com/vcuda-core-limit, 1 node(s) had taint {a: b}.",
         "2 Insufficient tencent.com/vcuda-core-limit"),
        ("0/3 nodes are available: 3 node(s) didn't have free ports for the requested pod ports.",
         "3 node(s) didn't have free ports for the requested pod ports"),
        ("0/3 nodes are available: 3 node(s) had volume node affinity conflict.",
         "3 node(s) had volume node affinity conflict"),
        ("0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
         "pod has unbound immediate PersistentVolumeClaims"),
    ],
)  # fmt: skip
async def test_what_fractile_does_not_look_at_is_said_as_kube_scheduler_says_it(
    filled: FakeApiServer, tmp_path: Path, said: str, repeated: str
) -> None:
    body = waiting("small", container("main", 4069))
    body["status"]["conditions"] = [{**REFUSED, "message": said}]
    submit(filled, body)
    found = await why(filled, tmp_path, "small")

    assert found.verdict == (
        f"kube-scheduler refused it at its last attempt for a reason that Fractile does not check: {repeated}; as far "
        "as Fractile can tell, 2 nodes (n1, n2) would take it"
    )


async def test_no_change_is_named_that_kube_scheduler_would_refuse_all_the_same(
    filled: FakeApiServer, tmp_path: Path
) -> None:
    body = waiting("large", container("main", 10_000))
    submit(filled, body)
    assert (await why(filled, tmp_path, "large")).changes != ()
    for name, insufficient, named in (("foreign", "example.com/foo", False), ("own", "aliyun.com/gpu-mem", True)):
        body = waiting(name, container("main", 10_000))
        body["status"]["conditions"] = [
            {**REFUSED, "message": f"0/3 nodes are available: 3 Insufficient {insufficient}."}
        ]
        submit(filled, body)
        assert ((await why(filled, tmp_path, name)).changes != ()) == named


@pytest.mark.parametrize("said", ["0/3 nodes are available: 3 Insufficient cpu, 3 Insufficient memory.", ""])
async def test_what_fractile_judges_itself_is_not_repeated(filled: FakeApiServer, tmp_path: Path, said: str) -> None:
    body = waiting("small", container("main", 4069))
    body["status"]["conditions"] = [{**REFUSED, "message": said}]
    submit(filled, body)

    assert (
        await why(filled, tmp_path, "small")
    ).verdict == "2 nodes (n1, n2) would take it now, as far as Fractile can tell"


async def test_a_resource_with_a_typo_is_answered_with_the_one_that_was_meant(
    filled: FakeApiServer, tmp_path: Path
) -> None:
    submit(filled, waiting("typo", container("main", 2, resource="alyun.com/gpu-mem")))

    assert await refused(filled, tmp_path, "typo") == (
        "pod default/typo asks for nothing of Fractile, and container main asks for alyun.com/gpu-mem: Fractile has no "
        "such resource; did you mean aliyun.com/gpu-mem?"
    )


async def test_a_typo_beside_a_good_name_is_a_note(filled: FakeApiServer, tmp_path: Path) -> None:
    more = {"nvidia.com/gpucore": 30}
    submit(filled, waiting("typo", container("main", 1, resource="nvidia.com/gpu", more=more)))

    assert any("did you mean nvidia.com/gpucores?" in note for note in (await why(filled, tmp_path, "typo")).notes)


async def test_an_amount_in_bytes_is_explained(filled: FakeApiServer, tmp_path: Path) -> None:
    submit(filled, waiting("bytes", container("main", 2 * 2**30)))

    assert (await why(filled, tmp_path, "bytes")).verdict.endswith(
        "; aliyun.com/gpu-mem counts MiB, not bytes: write 2048 for 2 GiB"
    )


async def test_gates_come_before_everything_else(filled: FakeApiServer, tmp_path: Path) -> None:
    submit(filled, waiting("gated", container("main", 99_999), schedulingGates=[{"name": "example.com/paid"}]))

    assert (await why(filled, tmp_path, "gated")).verdict == (
        "held back by scheduling gates (example.com/paid); no scheduler considers it until they are removed"
    )


async def test_a_scheduler_that_nobody_runs_is_named(filled: FakeApiServer) -> None:
    submit(filled, waiting("lost", container("main", 4069), seen=False, schedulerName="fractile-scheduler"))
    early, late = [await later(filled, "lost", seconds=s) for s in (29, 30)]

    assert early.verdict.endswith(
        "would take it now, as far as Fractile can tell; the scheduler has not tried to place it yet"
    )
    assert late.verdict == (
        "no scheduler named fractile-scheduler has tried to place it; check spec.schedulerName and the profiles of "
        "kube-scheduler"
    )


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
    assert "instead of 10000" in next(c.sentence for c in before.changes if c.change == "smaller-part")


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


async def test_a_pool_that_alone_stands_in_the_way_is_the_change(filled: FakeApiServer, tmp_path: Path) -> None:
    quota(filled, '{"default": {"pool": ["wx"]}}')
    submit(filled, waiting("small", container("main", 4069)))
    found = await why(filled, tmp_path, "small")

    assert [(c.change, c.node) for c in found.changes] == [("change-pool", "n1")]
    assert "  would fit: label n1 fractile.dev/pool=wx\n" in await text(filled, tmp_path, "small")


async def test_of_a_node_in_another_pool_both_ways_are_named(server: FakeApiServer, tmp_path: Path) -> None:
    labelled = machine("n1")
    labelled["metadata"]["labels"] = (labelled["metadata"].get("labels") or {}) | {"fractile.dev/pool": "public"}
    server.create(paths.nodes(), labelled)
    server.create(paths.extended_resources(), card("n1", 0))
    quota(server, '{"default": {"pool": ["wx"], "quota": {"V100": 1}}}')
    submit(server, waiting("small", container("main", 4069)))

    assert [c.sentence for c in (await why(server, tmp_path, "small")).changes] == [
        "label n1 fractile.dev/pool=wx, or add its pool public to the quota of namespace default"
    ]


async def test_an_amount_is_raised_and_no_pool_changed_where_the_node_is_in_the_pool(
    server: FakeApiServer, tmp_path: Path
) -> None:
    labelled = machine("n1")
    labelled["metadata"]["labels"] = (labelled["metadata"].get("labels") or {}) | {"fractile.dev/pool": "wx"}
    server.create(paths.nodes(), labelled)
    server.create(paths.extended_resources(), card("n1", 0))
    quota(server, '{"default": {"pool": ["wx"], "quota": {"V100": 0.1}}}')
    submit(server, waiting("small", container("main", 4069)))

    assert [c.change for c in (await why(server, tmp_path, "small")).changes] == ["raise-quota"]


async def test_no_change_is_named_where_amount_and_pool_both_refuse(filled: FakeApiServer, tmp_path: Path) -> None:
    quota(filled, '{"default": {"pool": ["wx"], "quota": {"V100": 1}}}')
    submit(filled, waiting("more", container("main", 4069)))
    found = await why(filled, tmp_path, "more")

    assert found.changes == ()
    assert found.notes == ("the quota's amounts and its pools are both obstacles, so no single change was looked for",)


async def test_a_spoiled_quota_gives_nothing_as_long_as_nothing_was_kept(filled: FakeApiServer, tmp_path: Path) -> None:
    quota(filled, "{")
    submit(filled, waiting("more", container("main", 4069)))
    found = await why(filled, tmp_path, "more")

    assert found.quota.state == "malformed"
    assert "quota ConfigMap fractile-system/fractile-quota: " in found.verdict
    assert found.fits == ()
    assert [c.change for c in found.changes] == ["correct-quota"]
    assert found.changes[0].sentence == f"correct the {found.verdict}"


async def test_of_a_spoiled_quota_the_one_that_was_kept_is_raised_where_it_is_corrected(
    filled: FakeApiServer, tmp_path: Path
) -> None:
    quota(filled, "{")
    meta = {"name": "fractile-quota-kept", "namespace": "fractile-system"}
    kept = {"metadata": meta, "data": {KEY: '{"default": {"quota": {"V100": 1}}}'}}
    filled.create(paths.config_maps("fractile-system"), kept)
    submit(filled, waiting("more", container("main", 4069)))
    (change,) = (await why(filled, tmp_path, "more")).changes

    assert change.change == "correct-quota"
    assert change.sentence.startswith("correct the quota ConfigMap fractile-system/fractile-quota: ")
    assert change.sentence.endswith("; and raise the quota of namespace default there")


async def test_no_change_is_named_after_which_the_quota_still_refuses(filled: FakeApiServer, tmp_path: Path) -> None:
    """The cards are full, so without the quota too the pod would wait; and the quota gives nothing more."""
    quota(filled, '{"default": {"quota": {"V100": 1}}}')
    submit(filled, waiting("large", container("main", 10_000), tolerations=[{"operator": "Exists"}]))
    filled.create(
        paths.pods("default"), pod("on-n3", container("main", 8138), on="n3", placed=placed("n3", main=(0, 8138)))
    )
    found = await why(filled, tmp_path, "large")

    assert found.changes == ()
    assert found.notes[0].startswith(
        "changes after which it would still be refused are left out: namespace default may "
    )


async def test_a_change_that_the_quota_bears_is_named(filled: FakeApiServer, tmp_path: Path) -> None:
    quota(filled, '{"default": {"quota": {"V100": 1.6}}}')
    submit(filled, waiting("large", container("main", 10_000)))
    sentences = [c.sentence for c in (await why(filled, tmp_path, "large")).changes]

    assert "ask for aliyun.com/gpu-mem: 8138 instead of 10000" in sentences
    assert not any(s.startswith(("add one node", "tolerate")) for s in sentences)


async def test_no_change_is_named_when_the_quota_is_not_all(filled: FakeApiServer, tmp_path: Path) -> None:
    """The only node with room has a taint, and the quota refuses too: neither alone would help."""
    quota(filled, '{"default": {"quota": {"V100": 1}}}')
    submit(filled, waiting("large", container("main", 10_000)))
    found = await why(filled, tmp_path, "large")

    assert found.changes == ()
    assert found.notes == (
        "changes after which it would still be refused are left out: namespace default may hold 1 V100, holds 1, and "
        "this pod takes 0.62",
    )


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
    assert (
        "Fractile's webhook is not registered, so what a class needs is not added to pods (docs/operate/webhook.md)"
        in found.notes
    )


async def test_a_terminal_obeys_nothing_that_the_pods_owner_wrote(filled: FakeApiServer, tmp_path: Path) -> None:
    evil = "\x1b]0;pwn\x07\ndefault/evil: running"
    body = waiting("evil", container("main", 1, resource="nvidia.com/gpu"))
    body["metadata"]["annotations"] = {"nvidia.com/use-gputype": evil}
    submit(filled, body)
    said = await text(filled, tmp_path, "evil")

    assert "a card of model ?]0;pwn??default/evil: running" in said
    assert all(line.isprintable() for line in said.splitlines())
    assert "default/evil: running" not in said.splitlines()
