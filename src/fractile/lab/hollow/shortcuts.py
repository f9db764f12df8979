"""Short links to the folders of hollow nodes, whose sockets must have paths below 108 bytes (unix(7)).

The files stay in the state directory; a link that a reboot removed is recreated. Failure rule: closed. In a
world-writable directory, a folder of that name that belongs to another user is refused.
"""

import contextlib
import os

from fractile.errors import SetupError
from fractile.lab.layout import ClusterLayout


def make(place: ClusterLayout, index: int) -> None:
    """Make the folder of a hollow node and the link to it."""
    folder, link = place.node(index).hollow, place.shortcut(index)
    (folder / "device-plugins").mkdir(parents=True, exist_ok=True)
    for parent in (place.shortcuts, link.parent):
        parent.mkdir(mode=0o700, exist_ok=True)
        found = parent.lstat()
        if found.st_uid != os.geteuid() or parent.is_symlink():
            raise SetupError(f"{parent} belongs to another user; set XDG_RUNTIME_DIR to a folder of your own")
    if link.is_symlink() and link.readlink() == folder:
        return
    link.unlink(missing_ok=True)
    link.symlink_to(folder)


def remove(place: ClusterLayout) -> None:
    """Remove the links of the cluster, and folders that this leaves empty."""
    folder = place.shortcuts / place.name
    for link in folder.glob("*"):
        if link.is_symlink():
            link.unlink()
    with contextlib.suppress(OSError):  # never made, or other clusters have links there
        folder.rmdir()
        place.shortcuts.rmdir()
