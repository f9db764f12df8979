"""A pod's own mounts leave the library and its limits where the agent puts them."""

import posixpath
import re
from collections.abc import Mapping

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fractile.agent.limits import fence
from fractile.kube import paths
from fractile.lab.cluster import objects
from fractile.region import directory
from fractile.wire.kubernetes.pod_mounts import MountingPod
from tests import mount_places
from tests.agent.world import CARDS, Asks, world

SENTENCE = "nothing may be mounted there"
KINDS = ("containers", "initContainers", "ephemeralContainers")
WORDS = ("", ".", "..", "etc", "fractile", "ld.so.preload", "vcuda", "usr", "local", "lib", "data", "fractile2", "x y")
PLAIN = [path.lstrip("/") for path in mount_places.FILES_OF_PROC]
LINKS = ("proc", "dev", "fd", "self", "root", "cpuinfo", "proc2", "fd0", "stat")


def pod(container: Mapping[str, object], kind: str = "containers") -> MountingPod:
    made = {"metadata": {"namespace": "team", "name": "p"}, "spec": {kind: [{"name": "c", **container}]}}
    return msgspec.json.decode(msgspec.json.encode(made), type=MountingPod)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "path",
    [*mount_places.OURS, *mount_places.OTHER_SPELLINGS, *mount_places.BY_LINKS_OF_THE_KERNEL],
)
def test_no_container_mounts_over_the_library_or_its_limits(kind: str, path: str) -> None:
    for way in (
        {"volumeMounts": [{"mountPath": "/data"}, {"mountPath": path}]},
        {"volumeDevices": [{"devicePath": path}]},
        {"terminationMessagePath": path},
    ):
        denied = fence.denied(pod(way, kind))
        assert denied is not None
        assert SENTENCE in denied.reason
        assert f"container c of pod team/p has a mount, device or terminationMessagePath at {path};" in denied.reason


@pytest.mark.parametrize("path", mount_places.ELSEWHERE)
def test_elsewhere_it_mounts_what_it_likes(path: str) -> None:
    assert fence.denied(pod({"volumeMounts": [{"mountPath": path}], "terminationMessagePath": path})) is None


@given(st.lists(st.sampled_from(WORDS + LINKS), max_size=8), st.booleans())
def test_what_is_refused_is_what_the_normal_form_of_the_path_meets(words: list[str], rooted: bool) -> None:
    path = ("/" if rooted else "") + "/".join(words)
    normal = posixpath.normpath(f"/{path}").lstrip("/")
    meets = any(
        normal == "" or ours == normal or ours.startswith(f"{normal}/") or normal.startswith(f"{ours}/")
        for ours in (o.lstrip("/") for o in fence.OURS)
    )
    led = normal not in PLAIN and f"{normal}/".startswith(("proc/", "dev/fd/"))
    assert fence.covers(path) == (".." in words or meets or led)


def literals(variable: str) -> list[str]:
    """The texts in an expression of the API server's policy."""
    documents = yaml.safe_load_all(objects.manifests())
    found = next(d for d in documents if d["metadata"]["name"] == "mounts.fractile.dev" and "variables" in d["spec"])
    expression = next(v["expression"] for v in found["spec"]["variables"] if v["name"] == variable)
    return re.findall(r"'([^']*)'", expression)


*WORDS_OF_POLICY, PARENTS = literals("near")
UPWARD, PLACES = literals("refused")[0], "".join(literals("refused")[1:])
WORDS_OF_LINKS, LED, NOT_LED = literals("led")[:2], literals("led")[2], "".join(literals("led")[3:])


def the_policy_refuses(path: str) -> bool:
    near = any(word in path for word in WORDS_OF_POLICY) or re.search(PARENTS, path) is not None
    if near and any(re.search(pattern, path) for pattern in (UPWARD, PLACES)):
        return True
    some = any(word in path for word in WORDS_OF_LINKS)
    return some and re.search(LED, path) is not None and re.search(NOT_LED, path) is None


@given(st.lists(st.sampled_from(WORDS + LINKS), max_size=8), st.booleans())
def test_the_policy_of_the_api_server_refuses_the_same_paths(words: list[str], rooted: bool) -> None:
    path = ("/" if rooted else "") + "/".join(words)
    assert the_policy_refuses(path) == fence.covers(path)


@pytest.mark.parametrize("place", fence.OURS)
def test_the_policy_of_the_api_server_knows_each_place(place: str) -> None:
    assert the_policy_refuses(place)


async def test_a_container_with_such_a_mount_does_not_start() -> None:
    """Where no policy refused the pod: before Kubernetes 1.30, or when the pod is older than the policy."""
    async with world() as w:
        made = w.bind(Asks("main", 4), on={"main": [CARDS[0]]})
        path = paths.pod(made.metadata.namespace, made.metadata.name)
        spec = w.server.get(path)["spec"]
        spec["containers"][0]["volumeMounts"] = [{"name": "v", "mountPath": "/etc/ld.so.preload"}]
        w.server.merge(path, {"spec": spec})
        w.kubelet.add(w.pod(made))
        message = await w.kubelet.refused(SENTENCE)
        assert "/etc/ld.so.preload" in message
        assert not list((w.root / "state" / "slices").rglob(directory.LIMITS))
