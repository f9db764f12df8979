"""Quotas on the real cluster: Kubernetes' own for classes and families, and the ConfigMap by model and pool."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fractile.lab.cluster.local import KubectlFailed, LocalCluster
from fractile.lab.demos import workload as w
from fractile.lab.demos.workload import DemoWorkload, Manifest
from fractile.wire.files.quota_file import DEFAULT_SOURCE, KEPT, KEY

EXAMPLE = """{"A": {"pool": ["public"], "quota": {"M40": 2, "P100": 3}},
 "B": {"pool": ["wx"],     "quota": {"M40": 8, "P100": 2}}}"""
NAMESPACE, NAME = DEFAULT_SOURCE.split("/")
# What gpu-admission's users write on their nodes; n4 has four cards, the others two.
LABELS = {
    "n1": {"fractile.dev/pool": "public", "gaia.tencent.com/gpu-model": "M40"},
    "n2": {"fractile.dev/pool": "public", "gaia.tencent.com/gpu-model": "P100"},
    "n3": {"gaia.tencent.com/gpu-pool": "wx", "gaia.tencent.com/gpu-model": "M40"},
    "n4": {"fractile.dev/pool": "public", "gaia.tencent.com/gpu-model": "M40"},
}


def put_quota(cluster: LocalCluster, text: str) -> None:
    meta = {"name": NAME, "namespace": NAMESPACE}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {KEY: text}}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(body))


def drop_quota(cluster: LocalCluster) -> None:
    cluster.kubectl("-n", NAMESPACE, "delete", "configmap", NAME, "--ignore-not-found")


def kept_quota(cluster: LocalCluster) -> str:
    """What the control plane has kept, since it is in force; what is refused before that says the old reason."""
    namespace, name = KEPT.split("/")
    kept = json.loads(cluster.kubectl("-n", namespace, "get", "configmap", name, "-o", "json"))
    return kept.get("data", {}).get(KEY, "")


def quota_events(cluster: LocalCluster, reason: str) -> list[str]:
    selector = f"--field-selector=involvedObject.name={NAME},reason={reason}"
    return [
        e["message"]
        for e in json.loads(cluster.kubectl("-n", NAMESPACE, "get", "events", selector, "-o", "json"))["items"]
    ]


def label(cluster: LocalCluster, *, remove: bool = False) -> None:
    for node, labels in LABELS.items():
        terms = [f"{name}-" if remove else f"{name}={value}" for name, value in labels.items()]
        cluster.kubectl("label", "node", node, "--overwrite", *terms)


@contextmanager
def namespaces(cluster: LocalCluster, *names: str) -> Generator[list[DemoWorkload]]:
    """Empty namespaces, gone afterwards."""
    made = [DemoWorkload(cluster.kubectl, name) for name in names]
    try:
        for each in made:
            each.create_namespace()
            each.delete()
        yield made
    finally:
        cluster.kubectl("delete", "namespace", *names, "--ignore-not-found", "--wait=true", timeout=150)


@contextmanager
def small_class(cluster: LocalCluster) -> Generator[None]:
    """Parts of 1 GiB of cards of 15 GiB and more."""
    expression = {"key": "memory", "operator": "Ge", "values": ["15GiB"]}
    body = {
        "apiVersion": "fractile.dev/v1alpha1",
        "kind": "ResourceClass",
        "metadata": {"name": "quota-small"},
        "spec": {"selector": {"matchExpressions": [expression]}, "memory": "1Gi"},
    }
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(body))
    try:
        yield
    finally:
        cluster.kubectl("delete", "resourceclass", "quota-small", "--ignore-not-found")


@pytest.fixture
def pools(cluster: LocalCluster) -> Generator[None]:
    """Nodes in two pools and of two models; afterwards as before, and no quota."""
    cluster.up()
    label(cluster)
    yield
    drop_quota(cluster)
    label(cluster, remove=True)


def whole(name: str, *nodes: str) -> Manifest:
    """A pod with a whole card."""
    return w.pod(name, w.container(count=1), nodes=nodes)


def part(name: str, memory: int, *nodes: str) -> Manifest:
    return w.pod(name, w.container(memory=memory), nodes=nodes)


def bound(work: DemoWorkload) -> list[str]:
    return sorted(name for name, pod in work.pods().items() if w.node_of(pod))


def said_of(work: DemoWorkload, name: str, words: str) -> Callable[[], bool]:
    return lambda: any(words in e["message"] for e in work.events(name))


def fractile_quota(cluster: LocalCluster, namespace: str = "") -> Manifest:
    """What ``fractile quota -o json`` says."""
    program = Path(sys.executable).with_name("fractile")
    only = ["-n", namespace] if namespace else []
    argv = [str(program), "quota", "-o", "json", "--kubeconfig", str(cluster.kubeconfig), *only]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True, env=dict(os.environ))
    return json.loads(done.stdout)


def test_resource_quota_refuses_the_sixth_pod_of_a_class_and_of_a_family(cluster: LocalCluster) -> None:
    cluster.up()
    hard = {"requests.class.fractile.dev/quota-small": "5", "requests.aliyun.com/gpu-mem": "500"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus"}, "spec": {"hard": hard}}

    def of_class(name: str) -> Manifest:
        asked = w.container()
        asked["resources"]["limits"] = {"class.fractile.dev/quota-small": "1", "fractile.dev/gpu": "1"}
        return w.pod(name, asked)

    with namespaces(cluster, "e2e-quota") as (work,), small_class(cluster):
        work.apply([quota])
        selector = ("-n", "e2e-quota", "get", "resourcequota", "gpus", "-o", "json")
        work.wait_until(
            20, "the quota to be counted", lambda: "used" in json.loads(cluster.kubectl(*selector))["status"]
        )
        work.apply([of_class(f"c{n}") for n in range(5)])
        with pytest.raises(KubectlFailed) as refused:
            work.apply([of_class("c5")])
        assert "exceeded quota: gpus, requested: requests.class.fractile.dev/quota-small=1" in str(refused.value)
        assert (
            "used: requests.class.fractile.dev/quota-small=5, limited: requests.class.fractile.dev/quota-small=5"
            in str(refused.value)
        )
        # Five parts of 1 GiB on cards of 16276 MiB: what is held by class.
        work.wait_running(*(f"c{n}" for n in range(5)), seconds=90)
        held = fractile_quota(cluster, "e2e-quota")["namespaces"][0]["held"]
        assert {(h["deviceClass"], h["heldPercent"]) for h in held} == {("quota-small", 35)}
        work.apply([part(f"m{n}", 100) for n in range(5)])
        with pytest.raises(KubectlFailed, match=r"exceeded quota: gpus, requested: requests\.aliyun\.com/gpu-mem=100"):
            work.apply([part("m5", 100)])
        report = fractile_quota(cluster, "e2e-quota")
        assert [(r["resource"], r["used"], r["hard"]) for r in report["namespaces"][0]["resourceQuotas"]] == [
            ("requests.aliyun.com/gpu-mem", "500", "500"),
            ("requests.class.fractile.dev/quota-small", "5", "5"),
        ]


def test_the_two_namespaces_of_gpu_admissions_example(cluster: LocalCluster, pools: None) -> None:
    put_quota(cluster, EXAMPLE)
    with namespaces(cluster, "a", "b") as (a, b):
        # A: two M40 and no third, whichever node of its pool has one free; P100 is another matter.
        a.apply([whole("m1", "n1", "n4"), whole("m2", "n1", "n4")])
        a.wait_running("m1", "m2")
        a.apply([whole("m3", "n1", "n4"), whole("p1", "n2")])
        a.wait_running("p1")
        full = "namespace a may hold 2 M40, holds 2, and this pod takes 1"
        a.wait_until(30, full, said_of(a, "m3", full))
        # B: only its own pool.
        b.apply([whole("here", "n3"), whole("there", "n2")])
        b.wait_running("here")
        pool = "namespace b may use nodes of pool wx only, and this one is in pool public"
        b.wait_until(30, pool, said_of(b, "there", pool))
        report = fractile_quota(cluster)
        held = {n["namespace"]: {h["model"]: h["heldPercent"] for h in n["limits"]} for n in report["namespaces"]}
        assert held["a"] == {"M40": 200, "P100": 100}
        assert held["b"] == {"M40": 100, "P100": 0}
        # What ends makes room at once: kube-scheduler alone would look again after minutes.
        a.delete("m1")
        a.wait_running("m3", seconds=20)


@pytest.mark.long
def test_a_hundred_pods_at_once_hold_no_more_than_the_quota(cluster: LocalCluster, pools: None) -> None:
    """813 of 16276 MiB are 5 %: ten pods of them are half a card."""
    put_quota(cluster, '{"crowd": {"quota": {"*": 0.5}}}')
    names = [f"p{n:03}" for n in range(100)]
    with namespaces(cluster, "crowd") as (work,):
        work.apply([part(name, 813, "n1", "n2", "n3") for name in names])
        work.wait_until(60, "ten pods to be bound", lambda: len(bound(work)) >= 10)
        full = "namespace crowd may hold 0.5 cards, holds 0.5, and this pod takes 0.05"
        waiting = [name for name in names if name not in bound(work)]
        work.wait_until(60, "the last of them to be refused", said_of(work, waiting[-1], full))
        assert len(bound(work)) == 10
        held = fractile_quota(cluster, "crowd")["namespaces"][0]
        assert held["limits"] == [{"model": "*", "limitPercent": 50, "heldPercent": 50}]
        # Raised: as many more as it bears, soon.
        put_quota(cluster, '{"crowd": {"quota": {"*": 0.75}}}')
        work.wait_until(20, "five more", lambda: len(bound(work)) >= 15)
        assert len(bound(work)) == 15
        cluster.kubectl("-n", "crowd", "delete", "pod", "--all", "--wait=false", "--grace-period=0", "--force")
        work.wait_gone(seconds=120)


@pytest.mark.long
def test_a_malformed_config_map_keeps_the_last_good_one_over_a_restart_and_gets_an_event(
    cluster: LocalCluster, pools: None
) -> None:
    put_quota(cluster, '{"kept": {"quota": {"*": 0}}}')
    with namespaces(cluster, "kept") as (work,):
        work.apply([part("p", 100)])
        none = "namespace kept may hold no cards"
        work.wait_until(30, none, said_of(work, "p", none))
        put_quota(cluster, '{"kept": {"quota": {"*": -1}}}')
        told = "'*' of namespace 'kept' must be a number of cards from 0 to 1000000; the quotas stay as they were"
        work.wait_until(20, told, lambda: any(told in e for e in quota_events(cluster, "QuotaIgnored")))
        work.apply([part("q", 100)])
        work.wait_until(30, none, said_of(work, "q", none))
        # The control plane starts again and goes by the ones that were kept.
        try:
            cluster.restart("control-plane", "--quota-others", "deny")
            work.apply([part("r", 100)])
            work.wait_until(40, none, said_of(work, "r", none))
            assert fractile_quota(cluster, "kept")["namespaces"][0]["limits"][0]["limitPercent"] == 0
            # Without a quota nobody is given a card, since the option says so.
            drop_quota(cluster)
            work.wait_until(20, "the deleted quota to count no more", lambda: not kept_quota(cluster))
            denied = "no quota gives cards to namespace kept"
            work.apply([part("s", 100)])
            work.wait_until(40, denied, said_of(work, "s", denied))
        finally:
            cluster.restart("control-plane")
        work.wait_running("p", "q", "r", "s", seconds=90)
