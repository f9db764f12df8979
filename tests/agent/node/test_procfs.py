"""Who a process is, from /proc: recorded files, and this machine's own."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fractile.agent.node.cgroup import CgroupPlace
from fractile.agent.node.procfs import Process, ProcFs
from fractile.model.units import PodUID

UID = "0a1b2c3d-1111-4222-8333-444455556666"
ID = "0123456789abcdef" * 4
TOKEN = "5f" * 16
STATUS = "Name:\tjob\nPid:\t{pid}\nNSpid:\t{pid}\t31\t7\nThreads:\t1\n"
MOUNTINFO = f"""1 0 0:50 / / rw,relatime - overlay overlay rw,lowerdir=/x
2 1 8:1 /var/lib/fractile/slices/{TOKEN} /etc/fractile ro,relatime - ext4 /dev/sda1 rw
3 2 8:1 /var/lib/fractile/slices/{TOKEN}/shared /etc/fractile/shared rw,relatime - ext4 /dev/sda1 rw
4 1 8:1 /var/lib/kubelet/pods/x/etc-hosts /etc/hosts rw,relatime - ext4 /dev/sda1 rw
"""


def fake(root: Path, pid: int, *, start: int = 500, command: str = "job", mountinfo: str = MOUNTINFO) -> Path:
    folder = root / str(pid)
    (folder / "ns").mkdir(parents=True, exist_ok=True)
    numbers = " ".join(["0"] * 18)
    (folder / "stat").write_text(f"{pid} ({command}) S {numbers} {start} 0 0\n")
    (folder / "status").write_text(STATUS.format(pid=pid))
    (folder / "cgroup").write_text(f"0::/kubepods/burstable/pod{UID}/{ID}\n")
    (folder / "mountinfo").write_text(mountinfo)
    (folder / "ns" / "pid").write_text("")
    return folder


def test_a_process_of_a_container_is_known_by_kernel_facts(tmp_path: Path) -> None:
    folder = fake(tmp_path, 4711)
    assert ProcFs(tmp_path).look([4711]) == {
        4711: Process(
            pid=4711,
            start_time=500,
            command="job",
            inner_pid=7,
            pid_namespace=(folder / "ns" / "pid").stat().st_ino,
            places=(CgroupPlace(PodUID(UID), ID),),
            token=TOKEN,
        )
    }


def test_a_command_with_brackets_and_blanks_does_not_shift_the_fields(tmp_path: Path) -> None:
    fake(tmp_path, 1, command=") R (0 0 \x1b[2J", start=77)
    assert ProcFs(tmp_path).look([1])[1].start_time == 77
    assert "\x1b" not in ProcFs(tmp_path).look([1])[1].command


def test_what_has_ended_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "2").mkdir()
    assert ProcFs(tmp_path).look([1, 2]) == {}


def test_a_process_without_the_mount_has_no_token_and_the_last_mount_counts(tmp_path: Path) -> None:
    fake(tmp_path, 1, mountinfo="1 0 0:50 / / rw - overlay overlay rw\n")
    fake(tmp_path, 2, mountinfo=MOUNTINFO + "9 1 0:60 / /etc/fractile rw - tmpfs tmpfs rw\n")
    assert [p.token for p in ProcFs(tmp_path).look([1, 2]).values()] == ["", ""]


def test_a_directory_that_the_node_has_removed_keeps_its_name_and_says_so(tmp_path: Path) -> None:
    gone = MOUNTINFO.replace(TOKEN, f"{TOKEN}//deleted")
    fake(tmp_path, 1)
    fake(tmp_path, 2, mountinfo=gone)
    fake(tmp_path, 3, mountinfo=gone + "9 1 0:60 / /etc/fractile rw - tmpfs tmpfs rw\n")
    found = ProcFs(tmp_path).look([1, 2, 3])
    assert [(p.token, p.deleted) for p in found.values()] == [(TOKEN, False), (TOKEN, True), ("", False)]


# At these Python ends lines, too; the kernel escapes newlines alone.
ENDS = ["\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028"]


@pytest.mark.parametrize("end", ENDS)
def test_no_name_that_a_tenant_chooses_makes_a_line_of_its_own(tmp_path: Path, end: str) -> None:
    """A path at which a pod mounts a volume, and the name of a program."""
    forged = (
        f"9 1 8:1 /vol /data{end}9 1 8:1 /var/lib/fractile/slices/{'ab' * 16} /etc/fractile rw - ext4 /dev/sda1 rw\n"
    )
    folder = fake(tmp_path, 1, mountinfo=MOUNTINFO + forged)
    (folder / "status").write_bytes(f"Name:\tx{end}NSpid:\t1\nPid:\t1\nNSpid:\t1\t31\t7\n".encode())
    (folder / "mountinfo").write_bytes((MOUNTINFO + forged).encode())
    found = ProcFs(tmp_path).look([1])[1]
    assert (found.token, found.inner_pid) == (TOKEN, 7)


def test_a_known_process_is_not_read_again_but_the_next_of_its_pid_is(tmp_path: Path) -> None:
    files = ProcFs(tmp_path)
    folder = fake(tmp_path, 1)
    files.look([1])
    (folder / "mountinfo").write_text("")
    assert files.look([1])[1].token == TOKEN
    fake(tmp_path, 1, start=501, mountinfo="")
    assert files.look([1])[1].token == ""


def test_who_is_asked_for_no_more_is_forgotten(tmp_path: Path) -> None:
    files = ProcFs(tmp_path)
    folder = fake(tmp_path, 1)
    files.look([1])
    files.look([])
    (folder / "mountinfo").write_text("")
    assert files.look([1])[1].token == ""


async def test_a_real_process_is_read_as_it_sees_itself() -> None:
    program = "import os, sys; print(os.stat('/proc/self/ns/pid').st_ino, flush=True); sys.stdin.read()"
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        namespace = int(await asyncio.wait_for(child.stdout.readline(), 20))
        seen = ProcFs().look([child.pid, os.getpid()])
        assert seen[child.pid].pid_namespace == namespace
        assert seen[child.pid].inner_pid == child.pid
        assert seen[child.pid].start_time >= seen[os.getpid()].start_time
        assert seen[child.pid].token == ""
    finally:
        child.stdin.close()
        await asyncio.wait_for(child.wait(), 10)
    assert ProcFs().look([child.pid]) == {}


IN_A_CONTAINER = """
mount -t tmpfs none /etc && mkdir /etc/fractile && mount --bind "$1" /etc/fractile && echo ready && exec cat
"""


async def test_a_container_s_process_is_held_by_a_descriptor_and_gone_when_it_ends(tmp_path: Path) -> None:
    token = tmp_path / TOKEN
    token.mkdir()
    child = await asyncio.create_subprocess_exec(
        *("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "sh", "-c", IN_A_CONTAINER, "sh", str(token)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    try:
        assert await asyncio.wait_for(child.stdout.readline(), 20) == b"ready\n"
        files, before = ProcFs(), process_descriptors()
        (first,) = files.look([child.pid]).values()
        assert first.token == TOKEN
        assert [files.look([child.pid])[child.pid] for _ in range(3)] == [first] * 3
        assert process_descriptors() == before + 1
        child.kill()
        await asyncio.wait_for(child.wait(), 10)
        assert files.look([child.pid]) == {}
        assert process_descriptors() <= before  # the loop has one of its own in some versions
    finally:
        if child.returncode is None:
            child.kill()
        await asyncio.wait_for(child.wait(), 10)


def process_descriptors() -> int:
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}") == "anon_inode:[pidfd]"
        except OSError:
            continue
    return found
