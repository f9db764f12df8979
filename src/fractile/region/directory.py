"""The directory of one container, which it sees at /etc/fractile: ``limits``, read-only, and ``shared/region``.

Containers have both files mapped, so a page in use changes in place, never by rename, and a region in use is never
replaced. A new page is first written whole as ``limits.next``: an agent killed in the middle of a change finds it at
its next start and completes the change (``finish``). Failure rule: an OSError goes to the caller; nothing half made is
used.

A first grant is not synced, since the container would have to wait for commits of the file system: a power failure may
leave names without bytes, but no container survives it, and the next grant writes them again. A change of a page in
force is on the disk, whole, before the first of its bytes changes.
"""

import contextlib
import os
import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from fractile.errors import WireError
from fractile.region import bounded, live, page, plain, shared
from fractile.region.page import ContainerLimits
from fractile.region.shared import FoundRegion

MOUNT = "/etc/fractile"  # where the container sees the directory
SHARED = "shared"  # the folder in it that agents from before 25 November 2026 let the container write
LIMITS = "limits"
REGION = f"{SHARED}/region"  # all that the container may write: in its own file system, where possible

_NEXT = "limits.next"
_NEW_REGION = "region.new"


def random_generation() -> int:
    """A number that no other region has."""
    return secrets.randbits(63) + 1


def prepare(directory: Path) -> None:
    """Make the mount point of the shared file: the container's user must reach it.

    An empty file holds its place until ``put``: a runtime that finds no source for a mount makes a folder of that name.
    Anything else there is removed, unless it is mounted: ``put`` handles what the container makes of its region.
    """
    folder = directory / SHARED
    plain.make_room_for_folder(folder)
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    with contextlib.suppress(FileExistsError):
        os.close(os.open(directory / REGION, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def put(
    directory: Path,
    wanted: ContainerLimits,
    *,
    found: FoundRegion | None = None,
    in_memory: bool = False,
    new_generation: Callable[[], int] = random_generation,
) -> None:
    """Make the directory match ``wanted``, whose ``generation`` is ignored; changes nothing when it already does.
    ``found``: what is at the region's path, if the caller has checked (``shared.find``). ``in_memory``: a new region
    gets its own file system (``bounded``)."""
    found = found or shared.find(directory / REGION)
    if found.leased:
        raise OSError(f"{directory / REGION}: {shared.LEASED}; end that process, or delete the pod")
    current = _readable(directory)
    kept = _kept(found, wanted, current)
    generation = new_generation() if kept is None else kept
    if kept is None:
        if found.in_use:
            raise OSError(
                f"processes still use {directory / REGION}, which is damaged or of other cards; delete the pod"
            )
        prepare(directory)
        make = partial(shared.create, cards=len(wanted.cards), generation=generation)
        _put_in_memory(directory, make, cards=len(wanted.cards)) if in_memory else _put_on_disk(directory, make)
    wanted = msgspec.structs.replace(wanted, generation=generation)
    if current != wanted:
        _write_page(directory, wanted)


def amend(
    directory: Path, wanted: ContainerLimits, *, found: FoundRegion | None = None, in_memory: bool = False
) -> None:
    """Change the page for the cards that it names; the region stays, whatever the container made of it."""
    current = _readable(directory)
    if current is None or [c.uuid for c in current.cards] != [c.uuid for c in wanted.cards]:
        put(directory, wanted, found=found, in_memory=in_memory)
        return
    wanted = msgspec.structs.replace(wanted, generation=current.generation)
    if current != wanted:
        _write_page(directory, wanted)


def read(directory: Path) -> ContainerLimits | None:
    """What the container may use; None when nothing was granted yet. WireError when the page is invalid."""
    try:
        return live.read(directory / LIMITS)
    except FileNotFoundError:
        return None


def release(directory: Path) -> None:
    """Unmount what ``put`` has mounted, so that the directory can be removed; running containers keep the region."""
    bounded.discard(directory / bounded.STAGE)
    bounded.release(directory / REGION)


def finish(directory: Path) -> None:
    """Complete the change that a killed agent had begun, if there is one. Remove an empty page, which a power failure
    left before it was in force, and anything else that is where a page belongs."""
    bounded.discard(directory / bounded.STAGE)
    pending = directory / _NEXT
    for path in (directory / LIMITS, pending):
        plain.make_room(path)
    if plain.size(directory / LIMITS) == 0:
        (directory / LIMITS).unlink()
    try:
        wanted = live.read(pending)
    except (FileNotFoundError, NotADirectoryError):
        return
    except WireError:
        pending.unlink()  # killed before the change began: the page is unchanged
        return
    _install(directory, wanted)


def _readable(directory: Path) -> ContainerLimits | None:
    try:
        return read(directory)
    except (OSError, WireError):
        return None


def _kept(found: FoundRegion, wanted: ContainerLimits, current: ContainerLimits | None) -> int | None:
    """The generation of the existing region, if it fits these cards; None: a new one is needed."""
    if found.generation is None or found.cards != len(wanted.cards):
        return None
    if current is None:  # the agent died between region and page
        return found.generation
    same = [c.uuid for c in current.cards] == [c.uuid for c in wanted.cards]
    return found.generation if same and current.generation == found.generation else None


def _put_in_memory(directory: Path, make: Callable[[Path], None], *, cards: int) -> None:
    bounded.put(directory / REGION, shared.RegionShape(cards).size, make)


def _put_on_disk(directory: Path, make: Callable[[Path], None]) -> None:
    target = directory / REGION
    staging = directory / _NEW_REGION  # the container cannot write here
    plain.make_room(staging)
    try:
        make(staging)
        bounded.release(target)
        plain.make_room(target)
        staging.rename(target)
    finally:
        staging.unlink(missing_ok=True)


def _write_page(directory: Path, wanted: ContainerLimits) -> None:
    pending = directory / _NEXT
    plain.make_room(pending)
    plain.make_room(directory / LIMITS)
    pending.write_bytes(page.encode(wanted))
    pending.chmod(0o644)  # whatever the umask: the container's user must read it
    if live.is_page(directory / LIMITS):
        _sync(pending, directory)  # before the page that it will complete is touched
    _install(directory, wanted)


def _install(directory: Path, wanted: ContainerLimits) -> None:
    """Put the page in ``limits.next`` in force."""
    if live.is_page(directory / LIMITS):
        live.update(directory / LIMITS, wanted)
        (directory / _NEXT).unlink()
    else:  # no page yet, or a text of the first release, which no process has mapped
        (directory / _NEXT).rename(directory / LIMITS)


def _sync(*paths: Path) -> None:
    """Flush our files to the disk, and the names in our directories."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
