"""What a pod's specification mounts into the file systems of its containers. Read only at the start of a container, so
that lists and watches of all pods need not carry it."""

from collections.abc import Iterator

from fractile.wire.kubernetes.objects import Container, KubeStruct, Pod, PodSpec


class VolumeMount(KubeStruct, frozen=True):
    mount_path: str = ""


class VolumeDevice(KubeStruct, frozen=True):
    device_path: str = ""


class MountingContainer(Container, frozen=True):
    volume_mounts: list[VolumeMount] | None = None
    volume_devices: list[VolumeDevice] | None = None
    termination_message_path: str = ""


class MountingSpec(PodSpec, frozen=True):
    containers: list[MountingContainer] | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    init_containers: list[MountingContainer] | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    ephemeral_containers: list[MountingContainer] | None = None
    runtime_class_name: str = ""


class MountingPod(Pod, frozen=True):
    """A pod with its containers' mounts, block devices and termination message files, and its runtime."""

    spec: MountingSpec = MountingSpec()


def inside_paths(pod: MountingPod) -> Iterator[tuple[str, str]]:
    """Pairs of a container's name and a path in it, as written in the specification."""
    spec = pod.spec
    for container in (*(spec.containers or ()), *(spec.init_containers or ()), *(spec.ephemeral_containers or ())):
        for mount in container.volume_mounts or ():
            yield container.name, mount.mount_path
        for device in container.volume_devices or ():
            yield container.name, device.device_path
        if container.termination_message_path:  # kubelet mounts a file there, which the container may write
            yield container.name, container.termination_message_path
