"""What the agent may do in the cluster is what it asks the API server for: nothing less, and nothing more."""

from pathlib import Path

import yaml

from fractile.kube import paths
from tests.agent.limits.test_enforce import OFF, events, until
from tests.agent.world import CARDS, NODE, Asks, world
from tests.fakes.apiserver import FakeApiServer, Recorded

ROLE = Path(__file__).parents[2] / "deploy" / "manifests" / "21-rbac-agent.yaml"

Right = tuple[str, str]  # verb, resource

# What no request of the day below shows.
OTHERWISE: dict[Right, str] = {
    ("create", "extendedresources"): "server-side apply of an object that is not there needs it beside patch",
    ("delete", "pods"): "only with --outside-ledger evict: tests/agent/audit/test_audit.py",
    ("get", "resourceclaims"): "only with --outside-ledger evict: tests/agent/audit/test_audit.py",
}


def granted() -> set[Right]:
    role = next(yaml.safe_load_all(ROLE.read_text()))
    return {(verb, resource) for rule in role["rules"] for verb in rule["verbs"] for resource in rule["resources"]}


def right(request: Recorded) -> Right:
    """As the API server's authorizer names it (RequestInfo)."""
    parts = request.path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if rest[0] == "namespaces" and len(rest) > 2:
        rest = rest[2:]
    resource = "/".join([rest[0], *rest[2:3]])
    match request.method:
        case "GET" if len(rest) > 1:
            return "get", resource
        case "GET":
            return ("watch" if request.query.get("watch") in ("1", "true") else "list"), resource
        case method:
            return {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}[method], resource


def stale(server: FakeApiServer) -> None:
    """A card that the node had once."""
    meta = {"name": "gpu-old", "labels": {"fractile.dev/node": NODE}}
    spec = {"nodeName": NODE, "deviceID": "GPU-OLD", "index": 7, "model": "m", "memory": "1Gi"}
    server.create(paths.extended_resources(), {"metadata": meta, "spec": spec})


async def test_a_day_of_the_agent_uses_each_right_that_it_has_and_needs_no_other() -> None:
    async with world(agent=False) as w:
        w.server.create("/api/v1/namespaces", {"metadata": {"name": "default"}})
        stale(w.server)
        w.start_agent()
        await w.ready()
        wishes = w.bind(Asks("c", 2), on={"c": [CARDS[0]]})
        w.annotate(wishes, {OFF: "off"})
        w.server.create(paths.runtime_classes(), {"metadata": {"name": "special"}, "handler": "crun"})
        w.server.merge(paths.pod("default", wishes.metadata.name), {"spec": {"runtimeClassName": "special"}})
        w.kubelet.add(w.pod(wishes))
        await until(lambda: w.kubelet.started(wishes, "c") is not None)
        await until(lambda: len(events(w, "IsolationKept")) == 1)
        await until(lambda: w.annotations(wishes).get("ALIYUN_COM_GPU_MEM_ASSIGNED") == "true")

        w.hurt(CARDS[0], lost=True)
        await until(lambda: told(w.server, "CardUnhealthy") == 1)
        w.hurt(CARDS[0])
        await until(lambda: told(w.server, "CardHealthy") == 1)
        w.hurt(CARDS[0], lost=True)
        await until(lambda: told(w.server, "CardUnhealthy") == 2)  # the same event, counted up
        await until(lambda: granted() <= asked(w.server) | OTHERWISE.keys())
        assert asked(w.server) <= granted()
        assert not asked(w.server) & OTHERWISE.keys()


def asked(server: FakeApiServer) -> set[Right]:
    return {right(request) for request in server.requests}


def told(server: FakeApiServer, reason: str) -> int:
    """How often."""
    return sum(int(str(e["count"])) for e in server.all(paths.events("default")) if e["reason"] == reason)
