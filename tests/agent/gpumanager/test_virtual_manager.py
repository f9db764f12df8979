"""Images made for gpu-manager on a node of ours: files, socket, registration, and those who lie."""

import asyncio
import os
import secrets
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fractile.model.units import PodUID
from fractile.wire.foreign.vcuda import CONFIG_NAME, PIDS_NAME, VcudaConfig, decode_config, decode_pids, encode_pids
from fractile.wire.kubernetes.objects import Pod
from tests.agent.gpumanager import gpu_client
from tests.agent.test_path import until
from tests.agent.world import CARDS, CORE, Asks, World, share, world

A, B = CARDS
MIB = 2**20
CONTAINER = secrets.token_hex(32)  # never that of another run: the agent searches the cgroups of the whole machine
CLIENT = [sys.executable, gpu_client.__file__, "--addr", "/etc/vcuda/vcuda.sock"]
# The container's view: an /etc of its own with its two folders, read-only as the runtime mounts them.
ENTER = """
mount -t tmpfs none /etc && mkdir /etc/fractile /etc/vcuda && mount --bind "$1" /etc/fractile &&
mount --bind "$2" /etc/vcuda && mount -o remount,bind,ro /etc/vcuda && shift 2 && exec "$@"
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="containers get mount namespaces of their own: needs root")


def folder(w: World, pod: Pod, container: str = "main") -> Path:
    started = w.kubelet.started(pod, container)
    assert started is not None
    return Path(started.mounts["/etc/vcuda"])


def inside(w: World, pod: Pod, *program: str, container: str = "main") -> list[str]:
    started = w.kubelet.started(pod, container)
    assert started is not None
    mounts = started.mounts["/etc/fractile"], started.mounts["/etc/vcuda"]
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", ENTER, "sh", *mounts, *program]


async def run(*program: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(*program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode or 0, out.decode("latin-1")


async def register(w: World, pod: Pod, *claims: str, container: str = "main") -> tuple[int, str]:
    """What gpu-client says in the container."""
    return await run(*inside(w, pod, *CLIENT, *claims, container=container))


@asynccontextmanager
async def shares(*asked: Asks) -> AsyncGenerator[tuple[World, Pod]]:
    async with world() as w:
        asks = asked or (share("main", 50, 30),)
        pod = w.admit(*asks, on={a.name: [B] for a in asks})
        await w.kubelet.running(pod)
        yield w, pod


@asynccontextmanager
async def cgroup(uid: PodUID | str, container: str = CONTAINER) -> AsyncGenerator[Path]:
    """A container's cgroup of v1 or v2 on this machine, as kubelet makes them."""
    root = Path("/sys/fs/cgroup")
    root = root / "memory" if (root / "memory").is_dir() else root
    remove_those_of_dead_runs(root)
    top = root / f"kubepods-{os.getpid()}"
    made = top / f"pod{uid}" / container
    made.mkdir(parents=True)
    try:
        yield made
    finally:
        for path in (made, made.parent, top):
            async with asyncio.timeout(10):
                while path.exists():
                    try:
                        path.rmdir()
                    except OSError:
                        await asyncio.sleep(0.05)


def remove_those_of_dead_runs(root: Path) -> None:
    for top in root.glob("kubepods-*"):
        if not Path("/proc", top.name.removeprefix("kubepods-")).exists():
            for folder, _, _ in os.walk(top, topdown=False):
                Path(folder).rmdir()


async def test_the_folder_is_mounted_read_only_and_complete_when_the_container_starts() -> None:
    async with shares() as (w, pod):
        found = folder(w, pod)
        assert decode_config((found / CONFIG_NAME).read_bytes()) == VcudaConfig(
            pod_uid=pod.metadata.uid, container="main", memory=7680 * MIB, cores=50, bus_id="0000:00:05.0"
        )
        assert decode_pids((found / PIDS_NAME).read_bytes()) == ()
        assert stat.S_ISSOCK((found / "vcuda.sock").stat().st_mode)
        assert found.parent.name in w.tokens()


async def test_who_asks_through_another_family_has_no_such_folder() -> None:
    async with world() as w:
        pod = w.admit(Asks("main", 4), on={"main": [A]})
        await w.kubelet.running(pod)
        started = w.kubelet.started(pod, "main")
        assert started is not None
        assert "/etc/vcuda" not in started.mounts
        assert [p.name for p in (w.root / "state" / "slices" / w.tokens()[0]).iterdir()] != []
        assert not (w.root / "state" / "slices" / w.tokens()[0] / "vcuda").exists()


async def test_soft_limits_and_whole_cards_are_told_as_gpu_manager_told_them() -> None:
    async with world() as w:
        soft = w.bind(share("main", 50, 30), on={"main": [A]})
        w.annotate(soft, {"tencent.com/vcuda-core-limit": "80"})
        w.kubelet.add(w.pod(soft))
        whole = w.admit(Asks("main", 100, CORE), on={"main": [B]})
        configs: list[VcudaConfig] = []
        for pod in (soft, whole):
            await w.kubelet.running(pod)
            configs.append(decode_config((folder(w, pod) / CONFIG_NAME).read_bytes()))
        assert [(c.cores, c.limit, c.enabled) for c in configs] == [(50, 80, True), (100, 0, False)]


@needs_root
async def test_gpu_client_of_an_old_image_registers_by_name_and_finds_its_files_there() -> None:
    async with shares() as (w, pod):
        claims = ["--bus-id", "", "--pod-uid", pod.metadata.uid, "--cont-name", "main", "--uid", "1234"]
        assert await register(w, pod, *claims) == (0, "answered b''\n")
        code, out = await run(*inside(w, pod, "cat", "/etc/vcuda/main/vcuda.config"))
        assert code == 0
        assert out == (folder(w, pod) / CONFIG_NAME).read_bytes().decode("latin-1")


@needs_root
async def test_pids_follow_the_container_from_the_moment_that_somebody_reads_them() -> None:
    async with shares() as (w, pod), cgroup(pod.metadata.uid) as made:
        pids = folder(w, pod) / PIDS_NAME
        first = await asyncio.create_subprocess_exec(*inside(w, pod, "sleep", "60"))
        second = await asyncio.create_subprocess_exec(*inside(w, pod, "sleep", "60"))
        try:
            for process in (first, second):
                (made / "cgroup.procs").write_text(str(process.pid))
            await asyncio.sleep(2.5)
            assert (pids.stat()).st_size == 0  # nobody has looked yet
            assert (await run(*inside(w, pod, "cat", "/etc/vcuda/vcuda.config")))[0] == 0
            await until(lambda: set(decode_pids(pids.read_bytes())) == {first.pid, second.pid})
            second.kill()
            await second.wait()
            await until(lambda: set(decode_pids(pids.read_bytes())) == {first.pid})
            await w.restart_agent()
            await w.ready()
            first.kill()
            await first.wait()
            await until(lambda: decode_pids(pids.read_bytes()) == ())
        finally:
            for process in (first, second):
                if process.returncode is None:
                    process.send_signal(signal.SIGKILL)
                    await process.wait()


@needs_root
async def test_registering_by_id_gives_the_pids_with_the_answer_and_only_for_the_own_id() -> None:
    async with shares() as (w, pod), cgroup(pod.metadata.uid) as made:
        enter = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
        uid = ["--pod-uid", pod.metadata.uid]
        other = [*CLIENT, *uid, "--cont-id", "f" * 64]
        code, out = await run("sh", "-c", enter, str(made), *inside(w, pod, *other))
        assert (code, "PERMISSION_DENIED" in out) == (1, True)
        own = [*CLIENT, *uid, "--cont-id", CONTAINER]
        code, out = await run("sh", "-c", enter, str(made), *inside(w, pod, *own))
        assert (code, out) == (0, "answered b''\n")
        assert len(decode_pids((folder(w, pod) / CONTAINER / PIDS_NAME).read_bytes())) == 1


@needs_root
async def test_when_the_containers_cgroup_goes_its_id_and_pids_go_and_the_next_one_registers() -> None:
    async with shares() as (w, pod):
        enter = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
        for container in (CONTAINER, CONTAINER[::-1]):
            client = [*CLIENT, "--pod-uid", pod.metadata.uid, "--cont-id", container]
            async with cgroup(pod.metadata.uid, container) as made:
                assert (await run("sh", "-c", enter, str(made), *inside(w, pod, *client)))[0] == 0
                assert (folder(w, pod) / container).is_symlink()
            await until(lambda name=container: not (folder(w, pod) / name).is_symlink())
            await until(lambda: (folder(w, pod) / PIDS_NAME).read_bytes() == b"")


@needs_root
@pytest.mark.parametrize(
    "claims",
    [
        pytest.param(["--pod-uid", "11111111-2222-4333-8444-555555555555", "--cont-name", "main"], id="another pod"),
        pytest.param(["--pod-uid", "POD", "--cont-name", "side"], id="another container of its pod"),
        pytest.param(["--pod-uid", "POD", "--cont-name", "../../other"], id="a path"),
        pytest.param(["--pod-uid", "POD", "--cont-id", "../" * 21 + "x"], id="a path for an id"),
        pytest.param(["--pod-uid", "POD", "--cont-name", "main", "--bus-id", "0000:ff:00.0"], id="another card"),
        pytest.param(["--pod-uid", "POD"], id="no container"),
        pytest.param([], id="nothing at all"),
    ],
)
async def test_a_claim_that_differs_is_refused(claims: list[str]) -> None:
    async with shares(share("main", 30, 4), share("side", 20, 4)) as (w, pod):
        words = [pod.metadata.uid if word == "POD" else word for word in claims]
        code, out = await register(w, pod, *words)
        assert (code, "PERMISSION_DENIED" in out) == (1, True), out
        assert sorted(p.name for p in folder(w, pod).iterdir()) == [PIDS_NAME, CONFIG_NAME, "vcuda.sock"]


@needs_root
async def test_a_process_of_another_container_is_refused_even_with_the_right_words() -> None:
    async with shares(share("main", 30, 4), share("side", 20, 4)) as (w, pod):
        claims = ["--pod-uid", pod.metadata.uid, "--cont-name", "main"]
        socket = str(folder(w, pod) / "vcuda.sock")
        client = [sys.executable, gpu_client.__file__, "--addr", socket, *claims]
        code, out = await run(*inside(w, pod, *client, container="side"))
        assert (code, "does not run in this container" in out) == (1, True), out
        code, out = await run(*client)  # a process of the host
        assert (code, "does not run in this container" in out) == (1, True), out


@needs_root
async def test_a_restarted_agent_opens_the_sockets_anew() -> None:
    async with shares() as (w, pod):
        await w.stop_agent()
        claims = ["--pod-uid", pod.metadata.uid, "--cont-name", "main"]
        code, out = await register(w, pod, *claims)
        assert (code, "UNAVAILABLE" in out) == (1, True)
        w.start_agent()
        await w.ready()
        async with asyncio.timeout(10):
            while (await register(w, pod, *claims))[0] != 0:  # noqa: ASYNC110
                await asyncio.sleep(0.1)


@needs_root
async def test_a_container_that_ended_while_no_agent_ran_has_no_pids_afterwards() -> None:
    async with shares() as (w, pod):
        found = folder(w, pod)
        enter = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
        client = [*CLIENT, "--pod-uid", pod.metadata.uid, "--cont-id", CONTAINER]
        async with cgroup(pod.metadata.uid) as made:
            assert (await run("sh", "-c", enter, str(made), *inside(w, pod, *client)))[0] == 0
            (found / PIDS_NAME).write_bytes(encode_pids([os.getpid()]))
            await w.stop_agent()
        w.start_agent()
        await w.ready()
        await until(lambda: (found / PIDS_NAME).read_bytes() == b"" and not (found / CONTAINER).is_symlink())


async def test_with_the_pod_its_folder_is_emptied() -> None:
    async with shares() as (w, pod):
        found = folder(w, pod)
        w.delete(pod)
        await until(lambda: not found.exists() or list(found.iterdir()) == [])
