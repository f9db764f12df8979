"""Whether a process sees the library that its container was given, with real mounts."""

import asyncio
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from fractile.agent.audit.sight import PAGE, UNMAPPED, Sight, SightCheck
from fractile.agent.audit.unaccounted import Attributed, Finding
from fractile.agent.limits import library
from fractile.agent.limits.slices import Granted
from fractile.agent.node.cgroup import CgroupPlace
from fractile.agent.node.procfs import Process, ProcFs
from fractile.model.units import PodUID
from fractile.region import directory
from fractile.region.counters import Counters
from fractile.region.usage import Unreadable
from fractile.wire.output.node_usage import Kind
from tests.agent.audit.test_unaccounted import POD, A, granted, ledger

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")

TOKEN = "t1"
MACHINE = platform.machine()
UID, ID = "11111111-2222-3333-4444-555555555555", "c" * 64
# A root of its own, as a runtime makes it: mounts of the node's files, then what the pod adds, then its program.
START = """
set -e
root="$1/root"; token="$2"; version="$3"
mkdir -p "$root/etc/fractile" "$root/usr/local/lib/fractile" "$root/old" "$root/own/etc" "$root/proc"
mount --bind "$root" "$root"
touch "$root/etc/ld.so.preload" "$root/usr/local/lib/fractile/libfractile.so" "$root/own/mine"
for d in bin sbin lib lib64 usr/bin usr/sbin usr/lib usr/lib64 dev; do
  [ -e "/$d" ] || continue
  mkdir -p "$root/$d" "$root/own/$d"
  mount --rbind "/$d" "$root/$d"; mount --rbind "/$d" "$root/own/$d"
done
mount --bind "$token" "$root/etc/fractile"
mount --bind "$version/ld.so.preload" "$root/etc/ld.so.preload"
mount --bind "$version/libfractile.so" "$root/usr/local/lib/fractile/libfractile.so"
cd "$root"; pivot_root . old; mount -t proc none /proc 2>/dev/null || true; cd /
sh -c "umount -l /old"
"""
END = "\nexec sh -c 'echo ready; read -r _'"  # not cat: it would be loading its libraries when it is looked at


def node(tmp_path: Path) -> tuple[Path, Path, Path]:
    """The agent's folder, the token directory and a version of the library."""
    token, version = tmp_path / "state" / "slices" / TOKEN, tmp_path / "state" / "lib" / "v1"
    token.mkdir(parents=True)
    (token / directory.LIMITS).write_bytes(b"limits")
    for number in (1, 2):
        made = version.with_name(f"v{number}")
        made.mkdir(parents=True)
        (made / library.PRELOAD).touch()  # the loader of these programs reads it, too
        (made / library.LIBRARY).write_bytes(b"\x7fELF")
    return tmp_path / "state", token, version


@asynccontextmanager
async def process(tmp_path: Path, token: Path, version: Path, script: str) -> AsyncGenerator[Process]:
    """The last program of a container in which ``script`` ran before."""
    child = await asyncio.create_subprocess_exec(
        *("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private"),
        *("sh", "-c", START + script + END, "sh", str(tmp_path), str(token), str(version)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    try:
        assert await asyncio.wait_for(child.stdout.readline(), 20) == b"ready\n"
        yield ProcFs().look([child.pid])[child.pid]
    finally:
        if child.returncode is None:
            child.kill()
        await asyncio.wait_for(child.wait(), 10)


def armed(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A node whose library is one that the loader really loads into every program."""
    state, token, version = node(tmp_path)
    for folder in (version, version.with_name("v2")):
        shutil.copy(next(Path(p) for p in libm() if Path(p).exists()), folder / library.LIBRARY)
        with (folder / library.LIBRARY).open("ab") as file:
            file.write(folder.name.encode())
        (folder / library.PRELOAD).write_text(f"{library.INSIDE}\n")
    return state, token, version


def maps(one: Process) -> str:
    return Path(f"/proc/{one.pid}/maps").read_text()


def libm() -> tuple[str, ...]:
    return tuple(f"{folder}/libm.so.6" for folder in (*library.DRIVER_FOLDERS, "/lib64", f"/lib/{MACHINE}-linux-gnu"))


def looked(
    state: Path, one: Process, token: Path, *, sure: bool = True, inside: tuple[int, ...] = (), **ask: bool
) -> str:
    """``sure`` False: by its cgroup in a container, as the processes ``inside`` are."""
    proc = Path("/proc") if sure else played(state.parent / "proc", (one.pid, *inside))
    place = CgroupPlace(PodUID(UID), ID)
    asked = msgspec.structs.replace(one, places=() if sure else (place,))
    return Sight(state, proc=proc).look([SightCheck(asked, (token,), sure, **ask)]).get(one.pid, "")


def played(proc: Path, inside: tuple[int, ...]) -> Path:
    """/proc where these are in one container, and their forebears are not."""
    pids = {*inside, *(int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in inside)}
    for pid in pids:
        (proc / str(pid)).mkdir(parents=True, exist_ok=True)
        for name in ("stat", "root", "ns", "maps", "fd"):
            if not (proc / str(pid) / name).is_symlink():
                (proc / str(pid) / name).symlink_to(f"/proc/{pid}/{name}")
        (proc / str(pid) / "cgroup").write_text(f"0::/kubepods/pod{UID}/{ID}\n" if pid in inside else "0::/system\n")
    return proc


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize(
    "script",
    [
        pytest.param("", id="as it was given"),
        pytest.param("mv /etc/fractile /etc/x 2>/dev/null || true", id="what cannot be moved"),
        pytest.param("ln -s /etc /l; echo own > /own/etc/ld.so.preload", id="links beside it"),
        pytest.param("mount -t tmpfs none /mnt 2>/dev/null || mount -t tmpfs none /own", id="another mount"),
    ],
)
async def test_who_sees_what_it_was_given_is_no_finding(tmp_path: Path, script: str, version: str) -> None:
    state, token, first = node(tmp_path)
    async with process(tmp_path, token, first.with_name(version), script) as one:
        assert one.token == TOKEN
        for sure in (True, False):
            assert looked(state, one, token, sure=sure) == ""


@pytest.mark.parametrize(
    ("script", "path"),
    [
        pytest.param("mount --bind /own/mine /etc/ld.so.preload", library.PRELOADED, id="a mount over the file"),
        pytest.param(
            "ln -s /etc /l; mount --bind /own/mine /l/ld.so.preload", library.PRELOADED, id="a mount through a link"
        ),
        pytest.param(
            "mount --bind /own/mine /proc/self/root/etc/ld.so.preload || mount --bind /own/mine /etc/ld.so.preload",
            library.PRELOADED,
            id="a mount through /proc",
        ),
        pytest.param(f"umount {library.PRELOADED}", library.PRELOADED, id="no mount any more"),
        pytest.param(f"mount --bind /own/mine {library.INSIDE}", library.INSIDE, id="another library"),
        pytest.param(
            f"cp {library.INSIDE} /own/copy; mount --bind /own/copy {library.INSIDE}", library.INSIDE, id="a copy of it"
        ),
        pytest.param("mkdir /own/f; touch /own/f/limits; mount --bind /own/f /etc/fractile", PAGE, id="another page"),
        pytest.param("mount -t tmpfs none /etc", library.PRELOADED, id="an empty folder"),
        pytest.param("cd /own; exec chroot /own sh -c 'echo ready; exec cat'", library.PRELOADED, id="chroot"),
        pytest.param(
            "ln -s ld.so.preload /own/etc/ld.so.preload; exec chroot /own sh -c 'echo ready; exec cat'",
            library.PRELOADED,
            id="chroot with a link to itself",
        ),
    ],
)
async def test_who_does_not_is_one_by_the_path(tmp_path: Path, script: str, path: str) -> None:
    state, token, version = node(tmp_path)
    async with process(tmp_path, token, version, script) as one:
        assert looked(state, one, token) == path
        assert looked(state, one, token, sure=False) == path  # its own forebear is no part of the container


# A driver that is mapped, and a loader that reads another file than the one that names the library.
DRIVER = f"cp {library.INSIDE} /own/libcuda.so.1; export LD_PRELOAD=/own/libcuda.so.1"
LOADER = f"""
its="$(ls /lib64/ld-linux-*.so.* /lib/ld-linux-*.so.* 2>/dev/null | head -1)"
sed s#{library.PRELOADED}#/etc/ld.so.xreload# "$its" >/own/ld
chmod +x /own/ld
"""
AROUND = f"{DRIVER}\n{LOADER}\nexec /own/ld /bin/sh -c 'echo ready; read -r _'"


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_who_has_loaded_the_library_is_no_finding(tmp_path: Path, version: str) -> None:
    state, token, first = armed(tmp_path)
    async with process(tmp_path, token, first.with_name(version), DRIVER) as one:
        assert library.INSIDE in maps(one)
        for sure in (True, False):
            assert looked(state, one, token, sure=sure, inside=(one.pid,)) == ""


async def test_who_sees_the_library_and_has_not_loaded_it_is_one(tmp_path: Path) -> None:
    state, token, version = armed(tmp_path)
    async with process(tmp_path, token, version, AROUND) as one:
        for sure in (True, False):
            assert looked(state, one, token, sure=sure, inside=(one.pid,)) == UNMAPPED
            assert looked(state, one, token, sure=sure, inside=(one.pid,), paths=False) == UNMAPPED
            assert looked(state, one, token, sure=sure, inside=(one.pid,), holds=False) == ""
        other = msgspec.structs.replace(one, start_time=one.start_time + 1)
        assert looked(state, other, token) == ""


async def test_who_does_not_see_it_either_is_one_by_the_path(tmp_path: Path) -> None:
    state, token, version = armed(tmp_path)
    async with process(tmp_path, token, version, f"{DRIVER}\numount {library.PRELOADED}") as one:
        assert looked(state, one, token) == library.PRELOADED


async def test_who_has_a_library_that_is_no_longer_on_the_node_is_no_finding(tmp_path: Path) -> None:
    """Its container was started by an older agent, and its region cannot be read."""
    state, token, version = armed(tmp_path)
    async with process(tmp_path, token, version, DRIVER) as one:
        shutil.rmtree(version)
        assert f"{library.INSIDE} (deleted)" in maps(one)
        assert looked(state, one, token, paths=False) == ""


async def test_the_log_names_once_who_cannot_be_looked_at(tmp_path: Path) -> None:
    """An agent of its own program, without the right to read what other users' processes have mapped."""
    state, token, version = armed(tmp_path)
    program = (
        "import logging, sys; from pathlib import Path; from fractile.agent.node.procfs import ProcFs; "
        "from fractile.agent.audit.sight import SightCheck, Sight; logging.basicConfig(); pid = int(sys.argv[1]); "
        "ask = SightCheck(ProcFs().look([pid])[pid], (Path(sys.argv[3]),), True); sight = Sight(Path(sys.argv[2])); "
        "print([sight.look([ask]), sight.look([ask])])"
    )
    async with process(tmp_path, token, version, AROUND) as one:
        child = await asyncio.create_subprocess_exec(
            *("setpriv", "--bounding-set", "-sys_ptrace,-perfmon,-sys_admin"),
            *(sys.executable, "-c", program, str(one.pid), str(state), str(token)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        said, logged = await asyncio.wait_for(child.communicate(), 30)
    assert said == b"[{}, {}]\n"
    assert logged.count(b"unknown whether it has the library") == 1


async def test_a_nested_container_is_not_known(tmp_path: Path) -> None:
    """Its mounts are not those of the program that started it, which is in the same container."""
    state, token, version = node(tmp_path)
    script = "\nmkfifo /p; unshare --mount chroot /own sh -c 'echo $$ >&2; echo ready; exec cat' </p & exec cat >/p"
    child = await asyncio.create_subprocess_exec(
        *("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private"),
        *("sh", "-c", START + script, "sh", str(tmp_path), str(token), str(version)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    assert child.stdin is not None
    try:
        assert await asyncio.wait_for(child.stdout.readline(), 20) == b"ready\n"
        inner = int((await asyncio.wait_for(child.stderr.readline(), 20)).split()[-1])
        one = ProcFs().look([inner])[inner]
        assert one.token == ""
        assert looked(state, one, token, sure=False, inside=(child.pid,)) == ""
        assert looked(state, one, token, sure=True) == library.PRELOADED
    finally:
        child.stdin.close()
        await asyncio.wait_for(child.wait(), 10)


async def test_who_has_ended_or_is_another_by_now_is_not_known(tmp_path: Path) -> None:
    state, token, version = node(tmp_path)
    async with process(tmp_path, token, version, "umount /etc/ld.so.preload") as one:
        other = Process(one.pid, one.start_time + 1, "x", 1, 1, (), "")
        assert looked(state, other, token) == ""
    assert looked(state, one, token) == ""


@pytest.mark.parametrize(
    "lost", [pytest.param("lib", id="the library"), pytest.param(f"slices/{TOKEN}/limits", id="the page")]
)
async def test_without_the_node_s_own_files_nothing_is_known(tmp_path: Path, lost: str) -> None:
    state, token, version = node(tmp_path)
    async with process(tmp_path, token, version, "umount /etc/ld.so.preload") as one:
        (state / lost).rename(state / "gone")
        assert looked(state, one, token) == ""


@pytest.mark.parametrize(
    ("its_region", "kind"),
    [("accounts for nothing", "no-library"), ("knows it", "not-in-ledger"), ("cannot be read", "not-in-ledger")],
)
@pytest.mark.parametrize("known", [True, False])
async def test_only_findings_of_processes_that_surely_account_for_nothing_say_what_they_do_not_see(
    tmp_path: Path, its_region: str, kind: Kind, known: bool
) -> None:
    """``known``: it sees the directory of its slice."""
    state, token, version = node(tmp_path)
    own = Granted(TOKEN, token, 0.0, granted().limits)
    async with process(tmp_path, token, version, "umount /etc/ld.so.preload") as seen:
        one = msgspec.structs.replace(seen, places=(CgroupPlace(POD, ID),))
        proc = Path("/proc") if known else played(tmp_path / "proc", (one.pid,))
        direct = Finding("not-in-ledger", A, one, own if known else None, 5, beyond=5)
        others = (Finding("no-slice", A, one, None, 5), Finding("over-ledger", A, None, own, 5, 1, 4))
        regions: dict[str, Counters | Unreadable] = {
            "accounts for nothing": ledger(0),
            "knows it": ledger(5, one),  # which had loaded the library before
            "cannot be read": Unreadable("leased"),
        }
        ledgers = {TOKEN: (regions[its_region],)}
        made, *rest = Sight(state, proc=proc).judged(Attributed({}, (direct, *others)), [own], ledgers).findings
        assert tuple(rest) == others
        found = kind == "no-library"
        assert (made.kind, made.beyond) == (kind if known else "not-in-ledger", 5)
        assert made.unseen == (library.PRELOADED if found else "")
        assert made.containers == (frozenset({"main"}) if found and not known else frozenset())


@pytest.mark.parametrize(
    ("region", "held", "kind"),
    [
        pytest.param(ledger(0), 5, "no-library", id="a region that does not know it"),
        pytest.param(Unreadable("leased"), 5, "no-library", id="a region that cannot be read"),
        pytest.param(ledger(0), None, "no-library", id="a driver that does not say what it holds"),
        pytest.param(ledger(0), 0, "not-in-ledger", id="who holds nothing"),
    ],
)
@pytest.mark.parametrize("known", [True, False])
async def test_what_has_not_loaded_the_library_says_so_whatever_its_region_says(
    tmp_path: Path, region: Counters | Unreadable, held: int | None, kind: Kind, known: bool
) -> None:
    """``known``: it sees the directory of its slice."""
    state, token, version = armed(tmp_path)
    own = Granted(TOKEN, token, 0.0, granted().limits)
    async with process(tmp_path, token, version, AROUND) as seen:
        one = msgspec.structs.replace(seen, places=(CgroupPlace(POD, ID),))
        proc = Path("/proc") if known else played(tmp_path / "proc", (one.pid,))
        direct = Finding("not-in-ledger", A, one, own if known else None, held)
        (made,) = Sight(state, proc=proc).judged(Attributed({}, (direct,)), [own], {TOKEN: (region,)}).findings
        found = kind == "no-library"
        assert (made.kind, made.unseen) == (kind if known else "not-in-ledger", "")
        assert made.containers == (frozenset({"main"}) if found and not known else frozenset())
