"""The logs of a cluster that was taken down: what a person needs who was told to look into them.

One folder for each name of a cluster, with the end of each log; the next `down` of that name replaces it. It is made
beside its place and moved there in one step, so an interrupted `down` leaves the older one or none.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from fractile.lab.layout import ClusterLayout

_EACH = 1 << 20  # bytes of the end of a log
_ALL = 64 << 20  # of one cluster
_PODS = "log/pods/fractile-system_*/*/*.log"  # of a node: Fractile's own pods, where it was started from its chart


def keep(place: ClusterLayout) -> Path | None:
    """Put the last part of each log of the cluster beside the clusters; where they are, None when there are none."""
    logs = dict(_logs(place))
    if not logs:
        return None
    made = place.kept_logs.with_name(f".{place.name}")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True, mode=0o700)
    left = _ALL
    for name, log in logs.items():
        left -= _end_of(log, made / name, most=min(_EACH, left))
    delete(place)
    made.rename(place.kept_logs)
    return place.kept_logs


def delete(place: ClusterLayout) -> bool:
    """Remove what was kept; False when nothing was."""
    there = place.kept_logs.exists()
    if there:
        shutil.rmtree(place.kept_logs)
        for folder in (place.kept_logs.parent, place.kept_logs.parent.parent):
            with contextlib.suppress(OSError):  # others' logs, or clusters
                folder.rmdir()
    return there


def _logs(place: ClusterLayout) -> Iterator[tuple[str, Path]]:
    """By the path that each gets: those of programs, then those of pods."""
    for log in sorted(place.logs.glob("*")):
        if log.is_file() and not log.is_symlink():
            yield log.name, log
    for node in place.all_nodes():
        for log in sorted(node.root.glob(_PODS)):
            if log.is_file() and not log.is_symlink():
                yield f"{node.root.name}/{log.relative_to(node.root / 'log' / 'pods')}", log


def _end_of(log: Path, to: Path, *, most: int) -> int:
    """Copy at most so many bytes, from the beginning of a line; how many they are."""
    with log.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - most))
        end = file.read(most)
    if size > most:
        end = end.partition(b"\n")[2]
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_bytes(end)
    to.chmod(0o600)
    return len(end)
