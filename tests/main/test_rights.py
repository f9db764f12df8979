"""What the control plane may do in the cluster is what it asks the API server for: nothing less, and nothing more.

A day of the program is played: it leads, places, tells, serves the webhook, keeps quotas and classes. What takes the
class controllers minutes (a node that is lost, a class that nobody needs any more) is played on a clock of the test's.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from fractile.classes.lost import GRACE
from fractile.kube import paths
from fractile.lab.cluster import objects
from fractile.main.leading import DEFAULT_LEASE
from fractile.wire.files.quota_file import DEFAULT_SOURCE, KEPT, KEY
from tests.charts.rendering import documents
from tests.classes.class_plane import controllers
from tests.classes.class_world import class_object, gpu, labels, node, resource
from tests.fakes.apiserver import FakeApiServer, Fault
from tests.main.process import Running, control_plane, free_port
from tests.main.term import test_webhook
from tests.main.term.test_classes import eventually
from tests.main.test_control_plane import ask, bind, fitting, stored, submit
from tests.rights import Asked, Rule, asked, refused, rules, unused

GROUP = ("Group", "fractile:control-plane")
ACCOUNT = ("ServiceAccount", "fractile-control-plane")
SYSTEM = "fractile-system"
QUOTA = paths.config_map(*DEFAULT_SOURCE.split("/"))
LEASE = paths.lease(*DEFAULT_LEASE.split("/"))
LINGER = 61.0  # seconds; longer than a default class outlives its last device


def granted() -> list[Rule]:
    return rules(yaml.safe_load_all(objects.manifests()), *GROUP)


async def test_a_day_of_the_control_plane_uses_each_right_that_it_has_and_needs_no_other(tmp_path: Path) -> None:
    told = await of_the_class_controllers()
    async with FakeApiServer() as server:
        prepare(server)
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        lease = f"--lease={DEFAULT_LEASE}"
        webhook = test_webhook.options(free_port())
        async with control_plane(kubeconfig, tmp_path, lease, *webhook, "--default-classes={vendor}.{model}") as one:
            await one.ready()
            await eventually(lambda: any(r.method == "PUT" and "/secrets/" in r.path for r in server.requests))
            server.delete(test_webhook.SECRET)
            server.delete(LEASE)  # it makes another one
            await place(server, one)
            await mistake(server)
            with suppress(TimeoutError):  # what is lacking then is said below
                await eventually(lambda: not unused(granted(), told | asked(server.requests)))
        assert "Traceback" not in one.log.read_text()
        told |= asked(server.requests)
    assert unused(granted(), told) == []
    assert refused(granted(), told) == []


def prepare(server: FakeApiServer) -> None:
    """What the manifests make, a node with two cards, and a class."""
    test_webhook.prepare(server)
    server.inject(Fault(method="PUT", path="/secrets/", status=409))  # the Secret is gone when it is tried again
    kept = KEPT.split("/")
    server.create(paths.config_maps(kept[0]), {"metadata": {"name": kept[1]}})
    server.create(LEASE.rpartition("/")[0], {"metadata": {"name": LEASE.rpartition("/")[2]}, "spec": {}})
    server.create(paths.nodes(), node("n1"))
    for index in (0, 1):
        server.create(paths.extended_resources(), resource(gpu("n1", index)))
    server.create(paths.resource_classes(), {"metadata": {"name": "part"}, "spec": {"memory": "4Gi"}})


async def place(server: FakeApiServer, running: Running) -> None:
    """A pod gets a card though the first answer is lost; another one waits, until it is touched."""
    first = submit(server, "first", 16_000)
    assert await fitting(running, first) == ["n1"]
    server.inject(Fault(method="POST", path="/binding", status=500))
    await ask(
        running, "bind", {"PodName": "first", "PodNamespace": "default", "PodUID": first.metadata.uid, "Node": "n1"}
    )
    assert await bind(running, first) == ""
    assert await bind(running, submit(server, "second", 16_000)) == ""
    late = submit(server, "late", 16_000)
    assert await fitting(running, late) == []
    server.delete(paths.pod("default", "first"))
    await eventually(lambda: "fractile.dev/retry" in (stored(server, "late").metadata.annotations or {}))


async def mistake(server: FakeApiServer) -> None:
    """Quotas that are kept, then malformed twice in the same way: one event, counted up."""
    meta = {"name": QUOTA.rpartition("/")[2]}
    server.create(paths.config_maps(SYSTEM), {"metadata": meta, "data": {KEY: '{"default": {"quota": {"*": 2}}}'}})
    await eventually(lambda: bool(server.get(paths.config_map(*KEPT.split("/"))).get("data")))
    for more in ("", " "):
        server.merge(QUOTA, {"data": {KEY: f'{{"default": {{"quota": {{"*": -1}}}}}}{more}'}})
        await eventually(lambda more=more: told(server) == 1 + len(more))


def told(server: FakeApiServer) -> int:
    return sum(int(str(e["count"])) for e in server.all(paths.events(SYSTEM)) if e["reason"] == "QuotaIgnored")


async def of_the_class_controllers() -> set[Asked]:
    """A node goes and comes back; a default class gets another model and loses the last."""
    async with controllers(template="{vendor}.{model}") as (one,):
        one.make_node(node("n1"))
        one.card(gpu("n1", 0, model="NVIDIA Tesla K80"))
        one.make_class(class_object("part", labels(model="Tesla V100"), memory="4Gi"))
        await one.settle()
        one.card(gpu("n1", 1, model="Tesla K80"))
        await one.settle()
        for ready in ("False", "True"):
            conditions = [{"type": "Ready", "status": ready, "lastTransitionTime": "2026-11-21T10:00:00Z"}]
            one.server.merge(f"{paths.node('n1')}/status", {"status": {"conditions": conditions}})
            await one.settle()
            one.clock.now += GRACE + 1
            await one.settle()
        for index in (0, 1):
            one.server.delete(paths.extended_resource(f"gpu-n1-{index}"))
        await one.settle()
        one.clock.now += LINGER
        await one.settle()
        return asked(one.server.requests)


def test_the_chart_gives_its_account_the_same_rights() -> None:
    found = documents({"controlPlane": {"defaultClasses": "{model}"}})

    assert rules(found, *ACCOUNT) == granted()


async def test_with_features_off_it_asks_for_none_of_their_rights(tmp_path: Path) -> None:
    """Its rights are those that the chart gives with these values."""
    values = {
        "dialects": {"class": False},
        "webhook": {"enabled": False},
        "controlPlane": {"globalPlacement": {"onRequest": False}, "quota": {"configMap": ""}},
    }
    args = ("--dialects=aliyun,tencent,nvidia", "--no-global-placement", "--quota-configmap=")
    async with FakeApiServer() as server:
        prepare(server)
        server.create("/api/v1/namespaces", {"metadata": {"name": "default"}})
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        async with control_plane(kubeconfig, tmp_path, f"--lease={DEFAULT_LEASE}", *args) as one:
            await one.ready()
            await place(server, one)
            asks = submit(server, "asks", 16_000, annotations={"fractile.dev/global-placement": "true"})
            assert await fitting(one, asks) == ["n1"]
            assert await bind(one, asks) == ""
        assert "Traceback" not in one.log.read_text()
        assert refused(rules(documents(values), *ACCOUNT), asked(server.requests)) == []


@pytest.mark.parametrize(
    ("request_", "rule"),
    [
        pytest.param(Asked("get", "", "pods", "a", "p"), Rule("get", "", "pods"), id="everywhere"),
        pytest.param(Asked("get", "", "secrets", "a", "s"), Rule("get", "", "secrets", "a", "s"), id="by name"),
        pytest.param(Asked("create", "", "pods/binding", "a", "p"), Rule("create", "", "pods/binding"), id="a part"),
    ],
)
def test_a_rule_gives_what_it_names_and_nothing_else(request_: Asked, rule: Rule) -> None:
    others: list[dict[str, Any]] = [{"verb": "list"}, {"group": "x"}, {"resource": "nodes"}]
    if rule.namespace:
        others += [{"namespace": "b"}, {"name": "other"}, {"name": ""}]
    fields = {name: getattr(request_, name) for name in request_.__struct_fields__}

    assert refused([rule], [request_]) == []
    assert unused([rule], [request_]) == []
    for other in others:
        wrong = Asked(**{**fields, **other})
        assert refused([rule], [wrong]) == [wrong]
        assert unused([rule], [wrong]) == [rule]
