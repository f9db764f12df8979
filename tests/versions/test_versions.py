"""kube-scheduler of each version takes what ``fractile scheduler-config`` prints for it, and does what it says.

Ten replicas that want one GPU each, on two empty nodes with eight: packing makes 8 and 2, kube-scheduler by itself 5
and 5. ``FRACTILE_VERSIONS`` names the versions, ``all`` for all of them; without it there is the current one alone.
"""

import os
import shutil
from pathlib import Path

import pytest

from fractile.wire.kubernetes.scheduler_config import LAST_WITH_POLICY, api_version
from tests.fakes.apiserver import FakeApiServer
from tests.versions import build, extender, scheduler
from tests.versions.scheduler import CARDS, NODES, PACKAGED, printed

pytestmark = pytest.mark.long

OPEN = "--insecure-open-extender"

WANTED = os.environ.get("FRACTILE_VERSIONS", build.CURRENT)
MINORS = [int(v.removeprefix("1.")) for v in (build.RELEASES if WANTED == "all" else WANTED.split(","))]
FORMS = [(minor, form) for minor in MINORS for form in ("policy", "config")[minor > LAST_WITH_POLICY :]]
PACKED, SPREAD = {CARDS, PACKAGED - CARDS}, {PACKAGED // 2}
MOST = ["--policy", "most-allocated"]
EMPTY_FIRST = ["--shape", "0:10,40:2,100:0"]


def ids(value: object) -> str:
    return f"1.{value}" if isinstance(value, int) else str(value)


def program(minor: int) -> Path:
    found = build.find(f"1.{minor}", os.environ)
    if found is None:
        pytest.skip(f"kube-scheduler 1.{minor} is not built; `make test-versions` builds it")
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv (util-linux) is not installed")
    return found


async def placed(minor: int, form: str, folder: Path, *options: str, name: str = "default-scheduler") -> dict[str, int]:
    """How many pods each node got from the real program with what the command printed."""
    found = program(minor)
    async with FakeApiServer() as server:
        kubeconfig = server.write_kubeconfig(folder / "kubeconfig")
        arguments = scheduler.flags(printed(minor, form, kubeconfig, *options), kubeconfig, folder)
        async with scheduler.running(found, arguments, folder) as process:
            await scheduler.fill(server, scheduler_name=name)
            return await scheduler.bound(server, process, folder)


@pytest.mark.parametrize(("minor", "form"), FORMS, ids=ids)
async def test_the_ratio_fills_one_node_before_the_next(minor: int, form: str, tmp_path: Path) -> None:
    assert set((await placed(minor, form, tmp_path)).values()) == PACKED


@pytest.mark.parametrize(("minor", "form"), FORMS, ids=ids)
async def test_a_shape_that_prefers_empty_nodes_keeps_them_equally_full(minor: int, form: str, tmp_path: Path) -> None:
    assert set((await placed(minor, form, tmp_path, *EMPTY_FIRST)).values()) == SPREAD


@pytest.mark.parametrize(("minor", "form"), FORMS, ids=ids)
async def test_with_a_weight_of_1_the_spreading_of_equal_pods_wins(minor: int, form: str, tmp_path: Path) -> None:
    options = ["--weight", "1", "--resources", "nvidia.com/gpu"]

    assert set((await placed(minor, form, tmp_path, *options)).values()) == SPREAD


@pytest.mark.parametrize(("minor", "form"), FORMS, ids=ids)
async def test_most_allocated_fills_one_node_before_the_next(minor: int, form: str, tmp_path: Path) -> None:
    by = ["--resources", "cpu,memory"] if form == "policy" else []  # more it cannot say

    assert set((await placed(minor, form, tmp_path, *MOST, *by)).values()) == PACKED


@pytest.mark.parametrize("minor", MINORS, ids=ids)
@pytest.mark.parametrize(
    ("name", "expected"), [("packed", PACKED), ("default-scheduler", SPREAD)], ids=["own", "default"]
)
async def test_a_profile_packs_its_own_pods_only(minor: int, name: str, expected: set[int], tmp_path: Path) -> None:
    found = await placed(minor, "config", tmp_path, *MOST, "--profile", "packed", name=name)

    assert set(found.values()) == expected


@pytest.mark.parametrize(("minor", "form"), FORMS, ids=ids)
async def test_the_extender_is_asked_over_tls_and_decides(minor: int, form: str, tmp_path: Path) -> None:
    found = program(minor)
    async with FakeApiServer() as server, extender.listening(server, tmp_path) as (url, ca, asked):
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        config = printed(minor, form, kubeconfig, "--extender", url, "--tls-ca", str(ca), OPEN)
        async with scheduler.running(found, scheduler.flags(config, kubeconfig, tmp_path), tmp_path) as process:
            await scheduler.fill(server)
            assert await scheduler.bound(server, process, tmp_path) == {NODES[0]: PACKAGED - CARDS, NODES[1]: CARDS}
    assert set(asked.bodies) == {"filter", "prioritize", "bind"}
    assert len(asked.bodies["bind"]) == PACKAGED
    # Only names travel (nodeCacheCapable).
    assert all(body["Nodes"] is None and body["NodeNames"] for body in asked.bodies["filter"])


@pytest.mark.parametrize(("minor", "form"), FORMS, ids=ids)
async def test_an_extender_with_another_authority_is_not_believed(minor: int, form: str, tmp_path: Path) -> None:
    found = program(minor)
    other = tmp_path / "other"
    other.mkdir()
    async with (
        FakeApiServer() as server,
        extender.listening(server, tmp_path) as (url, _, asked),
        extender.listening(server, other) as (_, wrong, _),
    ):
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        config = printed(minor, form, kubeconfig, "--extender", url, "--tls-ca", str(wrong), OPEN)
        async with scheduler.running(found, scheduler.flags(config, kubeconfig, tmp_path), tmp_path) as process:
            await scheduler.fill(server)
            await scheduler.says(process, tmp_path, "certificate signed by unknown authority")
    assert asked.bodies == {}


def other_apis(minor: int) -> list[int]:
    """A version for each API that this one does not serve: it serves its own and, for some releases, those before."""
    served = {20: {20}, 22: {20, 22}, 24: {22, 24}, 25: {22, 24, 25}, 28: {24, 25}}
    return [other for other in (20, 22, 24, 25) if other not in served.get(minor, {25})]


@pytest.mark.parametrize(("minor", "other"), [(m, o) for m in MINORS for o in other_apis(m)], ids=ids)
async def test_the_configuration_of_another_version_is_refused(minor: int, other: int, tmp_path: Path) -> None:
    found = program(minor)
    async with FakeApiServer() as server:
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        config = scheduler.Printed(minor, "config", printed(other, "config", kubeconfig, *MOST).text)
        told = await scheduler.refused(found, scheduler.flags(config, kubeconfig, tmp_path), tmp_path)
    assert api_version(other) in told


@pytest.mark.parametrize("minor", [minor for minor in MINORS if minor > LAST_WITH_POLICY], ids=ids)
async def test_a_policy_file_is_refused_after_1_22(minor: int, tmp_path: Path) -> None:
    found = program(minor)
    async with FakeApiServer() as server:
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        config = scheduler.Printed(minor, "policy", printed(LAST_WITH_POLICY, "policy", kubeconfig).text)
        told = await scheduler.refused(found, scheduler.flags(config, kubeconfig, tmp_path), tmp_path)
    assert "unknown flag: --policy-config-file" in told
