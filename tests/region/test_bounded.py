"""What a container shares with its node, in a file system of its own: it takes no disk, and is a file only."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# In a mount namespace of its own, as the agent's node has one. The container gets a copy of its mounts.
PROGRAM = """
import os, subprocess, sys
from pathlib import Path
from fractile.agent.limits.journal import Journal
from fractile.region import bounded, directory, shared
from fractile.region.page import ContainerLimits
from tests.region.examples import LIMITS

state = Path(sys.argv[1])
def journal():
    return Journal(state / "slices", new_token=str, in_memory=True)
def mounts():
    return [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(state) in line]
def flags(path):
    (line,) = [l for l in Path("/proc/self/mountinfo").read_text().splitlines() if l.split()[4] == str(path)]
    return set(line.split()[5].split(","))
CONTAINER = '''
set -e
mount -t tmpfs none /etc && mkdir /etc/fractile
mount --rbind "$1" /etc/fractile && mount -o remount,ro,bind /etc/fractile
mount --bind "$1/shared/region" /etc/fractile/shared/region
cd /etc/fractile/shared
'''
def container(script):
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", CONTAINER + script, "sh", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    return done.stdout + done.stderr
j = journal()
j.create("t", "r", frozenset({"a::0"}))
j.write_limits("t", LIMITS)
folder, region = j.path("t"), j.path("t") / directory.REGION
"""


def run(tmp_path: Path, script: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounts need root")
    inside = (
        f"mount --bind {tmp_path} {tmp_path} && mount --make-rshared {tmp_path} && exec {sys.executable} - {tmp_path}"
    )
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", inside]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, input=PROGRAM + script)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_mount_can_be_made_where_the_runtime_would_see_it(tmp_path: Path) -> None:
    run(tmp_path, 'assert bounded.why_not(state) == "", bounded.why_not(state)\nassert mounts()[1:] == [str(region)]')


def test_where_nobody_would_see_the_mount_none_is_made(tmp_path: Path) -> None:
    run(
        tmp_path,
        'subprocess.run(["mount", "--make-private", str(state)]); assert "propagation" in bounded.why_not(state)',
    )


def test_what_is_shared_is_whole_and_alone_in_a_file_system_that_runs_nothing(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
assert shared.read(region, cards=2).shape == shared.RegionShape(2)
assert mounts()[1:] == [str(region)], mounts()
assert {"nosuid", "nodev", "noexec"} <= flags(region), flags(region)
assert sorted(p.name for p in folder.iterdir()) == ["ids", "limits", "shared"]
assert (state / "slices").stat().st_mode & 0o777 == 0o700
assert directory.read(folder).generation == shared.generation(region, cards=2)
""",
    )


def test_a_container_as_root_cannot_take_a_byte_of_the_disk_through_it(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
said = container('''
dd if=/dev/zero of=region bs=1M seek=1 count=64 conv=notrunc 2>&1 | grep -o "No space left" | head -1
fallocate -o 0 -l 64M region 2>&1 | grep -o "No space left"
for try in 'touch new' 'rm region' 'mv region other' 'ln region other' 'mkdir folder' 'touch ../limits'; do
    if $try 2>/dev/null; then echo "did: $try"; fi
done
echo end''')
assert said == "No space left\\nNo space left\\nend\\n", said
room = os.statvfs(region)
assert shared.RegionShape(2).size <= room.f_blocks * room.f_frsize < shared.RegionShape(2).size + 4096
assert region.stat().st_blocks * 512 <= shared.RegionShape(2).size + 4096
shared.cut_back(region, cards=2)
assert shared.generation(region, cards=2) is not None
""",
    )


def test_a_program_with_the_setuid_bit_written_into_it_runs_nowhere(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
said = container("cat /bin/true > region; chmod 4755 region; ./region")
assert "Permission denied" in said, said
try:
    subprocess.run([str(region)])
except PermissionError:
    pass
else:
    raise AssertionError("it ran by its path on the node")
""",
    )


def test_another_agent_finds_it_and_it_goes_with_its_directory(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
with open(region, "r+b") as file:
    file.seek(5000)
    file.write(b"kept")
again = journal()
again.write_limits("t", LIMITS)
with open(region, "rb") as file:
    file.seek(5000)
    assert file.read(4) == b"kept"
again.remove("t")
assert not folder.exists()
assert mounts()[1:] == [], mounts()
""",
    )


def test_what_a_crash_left_is_taken_away(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
stage = folder / bounded.STAGE
stage.mkdir()
subprocess.run(["mount", "-t", "tmpfs", "none", str(stage)], check=True)  # died while it made another region
(state / "slices" / "x").mkdir()
folder.rename(state / "slices" / ".t")  # died while it removed the directory
(state / "slices" / "x").rmdir()
again = journal()
assert list((state / "slices").iterdir()) == []
assert mounts()[1:] == [], mounts()
again.create("u", "r", frozenset({"a::0"}))
again.write_limits("u", LIMITS)
stage = again.path("u") / bounded.STAGE
stage.mkdir()
subprocess.run(["mount", "-t", "tmpfs", "none", str(stage)], check=True)
journal()
assert mounts()[1:] == [str(again.path("u") / directory.REGION)], mounts()
assert not stage.exists()
""",
    )


def test_after_a_reboot_the_region_is_made_again(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
bounded.release(region)  # as a reboot does
assert region.stat().st_size == 0
again = journal()
again.write_limits("t", LIMITS)
assert shared.generation(region, cards=2) == directory.read(folder).generation
assert mounts()[1:] == [str(region)]
""",
    )


def test_other_cards_get_another_one(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
import msgspec
j.write_limits("t", msgspec.structs.replace(LIMITS, cards=LIMITS.cards[:1]))
assert shared.generation(region, cards=1) == directory.read(folder).generation
assert mounts()[1:] == [str(region)]
""",
    )


HOSTILE = """
import os, sys
os.chdir(sys.argv[1])
steps = (
    lambda: os.symlink(sys.argv[2], "link"),
    lambda: os.rename("link", "region"),
    lambda: os.unlink("region"),
    lambda: os.rename("region", "moved"),
)
while True:
    for step in steps:
        try:
            step()
        except OSError:
            pass
"""


def test_a_container_that_holds_the_folder_of_an_older_agent_moves_the_mount_nowhere(tmp_path: Path) -> None:
    """It puts a link where the agent is about to mount, again and again, and moves what it finds there."""
    (tmp_path / "hostile.py").write_text(HOSTILE)
    run(
        tmp_path,
        """
import contextlib, time
victim = state / "victim"
victim.write_text("the node's")
command = [sys.executable, str(state / "hostile.py"), str(region.parent), str(victim)]
hostile = subprocess.Popen(["unshare", "--mount", "--propagation", "slave", *command])
size, done, refused = shared.RegionShape(2).size, 0, 0
deadline = time.monotonic() + 6
try:
    while time.monotonic() < deadline:
        try:
            bounded.put(region, size, lambda path: shared.create(path, cards=2, generation=1))
            done += 1
        except OSError:
            refused += 1
        assert victim.read_text() == "the node's", (done, refused)
        assert str(victim) not in mounts(), (done, refused)
finally:
    hostile.kill()
    hostile.wait()
assert done + refused > 100, (done, refused)
for left in region.parent.iterdir():
    bounded.release(left)
    left.unlink()
bounded.put(region, size, lambda path: shared.create(path, cards=2, generation=1))
assert shared.generation(region, cards=2) == 1
assert mounts()[1:] == [str(region)], mounts()
""",
    )


def test_a_link_in_the_place_or_instead_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
def put():
    bounded.put(region, shared.RegionShape(2).size, lambda path: shared.create(path, cards=2, generation=1))
victim = state / "victim"
victim.write_text("the node's")
bounded.release(region)
region.unlink()
region.symlink_to(victim)
put()
assert victim.read_text() == "the node's"
assert mounts()[1:] == [str(region)], mounts()
assert shared.generation(region, cards=2) == 1
bounded.release(region)
region.parent.rename(folder / "elsewhere")
region.parent.symlink_to(folder / "elsewhere")
try:
    put()
except OSError:
    pass
else:
    raise AssertionError("it went through a link")
assert mounts()[1:] == [], mounts()
""",
    )


OVERLAY = """
cd "$0" && mkdir lower upper merged
mount -t tmpfs none lower && mkdir -p lower/old/shared && echo lower > lower/old/shared/region
mount -t tmpfs none upper && mkdir upper/data upper/work
mount -t overlay -o xino=off,lowerdir=lower,upperdir=upper/data,workdir=upper/work none merged
"""


def test_on_overlayfs_a_file_of_a_layer_does_not_count_as_mounted(tmp_path: Path) -> None:
    """Such as a state directory on the root of a node whose root is an overlay: the file has the device of its layer,
    the folder that of the overlay."""
    (tmp_path / "overlay.sh").write_text(OVERLAY)
    run(
        tmp_path,
        """
subprocess.run(["sh", "-ec", (state / "overlay.sh").read_text(), str(state)], check=True)
old = state / "merged" / "old" / "shared" / "region"
assert old.lstat().st_dev != old.parent.lstat().st_dev, "this kernel hides it"
assert not bounded.is_bounded(old)
bounded.release(old)
for _ in range(2):
    bounded.put(old, shared.RegionShape(2).size, lambda path: shared.create(path, cards=2, generation=1))
    assert bounded.is_bounded(old)
    assert shared.generation(old, cards=2) == 1
bounded.release(old)
assert not bounded.is_bounded(old)
assert not [m for m in mounts() if m.endswith("region") and "merged" in m]
""",
    )


@pytest.mark.parametrize("harm", ["region.mkdir()", "(region / 'full').mkdir(parents=True)", "os.mkfifo(region)"])
def test_a_region_that_was_unmounted_and_replaced_is_made_again(tmp_path: Path, harm: str) -> None:
    run(
        tmp_path,
        f"""
subprocess.run(["umount", str(region)], check=True)
region.unlink()
{harm}
j.write_limits("t", LIMITS)
assert shared.read(region, cards=2).shape == shared.RegionShape(2)
assert mounts()[1:] == [str(region)], mounts()
""",
    )
