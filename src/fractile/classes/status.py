"""What a class's status should be, and how it is written."""

from fractile.classes.book import BookedClass
from fractile.classes.count import CountedDevices, Remark
from fractile.classes.lost import FIELD_MANAGER
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.wire.fractile.resource_class import API_VERSION, KIND, DeviceCounts, ResourceClassStatus, UnitCounts


def wanted(entry: BookedClass, figures: CountedDevices, remark: Remark, *, stamp: str) -> ResourceClassStatus | None:
    """The status as it should be; None when it is. Its time is that of the last change of the reason."""
    seen = entry.status
    since = seen.last_transition_time
    status = ResourceClassStatus(
        devices=DeviceCounts(total=figures.total, free=figures.free, unhealthy=figures.unhealthy),
        units=UnitCounts(total=figures.units, free=figures.free_units),
        reason=remark.reason,
        message=remark.message,
        observed_generation=entry.generation,
        last_transition_time=since if since and seen.reason == remark.reason else stamp,
    )
    return None if status == seen else status


async def write(client: KubeClient, name: str, uid: str, status: ResourceClassStatus) -> None:
    """Write every field, zeros and empty texts included, so that values written by other clients are corrected."""
    devices, units = status.devices, status.units
    body = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "uid": uid},
        "status": {
            "devices": {"total": devices.total, "free": devices.free, "unhealthy": devices.unhealthy},
            "units": {"total": units.total, "free": units.free},
            "reason": status.reason,
            "message": status.message,
            "observedGeneration": status.observed_generation,
            "lastTransitionTime": status.last_transition_time,
        },
    }
    await client.apply(f"{paths.resource_class(name)}/status", body, field_manager=FIELD_MANAGER)
