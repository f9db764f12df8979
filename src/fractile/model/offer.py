"""A non-GPU device as its node offers it: the device, and what else a container needs to use it."""

import msgspec

from fractile.model.card import Card
from fractile.model.units import CardUUID


class DeviceNode(msgspec.Struct, frozen=True):
    """A device file of the node, such as /dev/infiniband/uverbs0, and where the container finds it."""

    host: str
    container: str
    permissions: str = "rw"  # of the cgroup: read, write, mknod


class Mount(msgspec.Struct, frozen=True):
    """A file or folder of the node, and where the container finds it."""

    host: str
    container: str
    read_only: bool = True


class Offer(msgspec.Struct, frozen=True):
    """``device`` has a type of its own, shares, and no memory."""

    device: Card
    nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def uuid(self) -> CardUUID:
        return self.device.uuid
