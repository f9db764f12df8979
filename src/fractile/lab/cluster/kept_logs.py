"""The logs of a cluster that was taken down, kept because error messages refer users to them.

There is one folder per cluster name, with the end of each log; the next `down` of that name replaces it. The new folder
is built next to the old one and renamed in one step, so an interrupted `down` leaves the old one or none.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from fractile.lab.layout import ClusterLayout

_EACH = 1 << 20  # bytes of the end of a log
_ALL = 64 << 20  # of one cluster
_PODS = "log/pods/fractile-system_*/*/*.log"  # of a node: Fractile's own pods, if it was installed from its chart


def keep(place: ClusterLayout) -> Path | None:
    """Keep the last part of each log of the cluster; return their folder, or None when there are no logs."""
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
    """Remove the kept logs; False when there were none."""
    there = place.kept_logs.exists()
    if there:
        shutil.rmtree(place.kept_logs)
        for folder in (place.kept_logs.parent, place.kept_logs.parent.parent):
            with contextlib.suppress(OSError):  # it holds logs of other clusters, or clusters
                folder.rmdir()
    return there


def _logs(place: ClusterLayout) -> Iterator[tuple[str, Path]]:
    """The logs of programs, then those of pods, each with the path under which it is kept."""
    for log in sorted(place.logs.glob("*")):
        if log.is_file() and not log.is_symlink():
            yield log.name, log
    for node in place.all_nodes():
        for log in sorted(node.root.glob(_PODS)):
            if log.is_file() and not log.is_symlink():
                yield f"{node.root.name}/{log.relative_to(node.root / 'log' / 'pods')}", log


def _end_of(log: Path, to: Path, *, most: int) -> int:
    """Copy at most ``most`` bytes of the end, from the beginning of a line; return their number."""
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
