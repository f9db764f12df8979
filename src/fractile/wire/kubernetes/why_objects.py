"""Pods and events as ``fractile why`` reads them: what kube-scheduler, kubelet and others reported about a pod."""

import msgspec

from fractile.wire.kubernetes.admission import EnvVar, blind, visible_devices
from fractile.wire.kubernetes.manifests import PlannedPod, PlannedPodSpec
from fractile.wire.kubernetes.objects import (
    Container,
    ContainerState,
    ContainerStatus,
    KubeStruct,
    ObjectMeta,
    PodCondition,
    PodStatus,
)


class ConditionWithReason(PodCondition, frozen=True):
    reason: str = ""
    message: str = ""


class ContainerWaiting(KubeStruct, frozen=True):
    reason: str = ""
    message: str = ""


class ObservedState(ContainerState, frozen=True):
    waiting: ContainerWaiting | None = None


class ObservedContainer(ContainerStatus, frozen=True):
    name: str = ""
    state: ObservedState | None = None


class ObservedStatus(PodStatus, frozen=True):
    reason: str = ""
    message: str = ""
    conditions: list[ConditionWithReason] | None = None
    container_statuses: list[ObservedContainer] | None = None
    init_container_statuses: list[ObservedContainer] | None = None


class ObservedMeta(ObjectMeta, frozen=True):
    deletion_grace_period_seconds: int | None = None


class PlannedContainer(Container, frozen=True):
    env: list[EnvVar] | None = None


class ObservedSpec(PlannedPodSpec, frozen=True):
    containers: list[PlannedContainer] | None = None  # pyright: ignore[reportIncompatibleVariableOverride]  # only read
    init_containers: list[PlannedContainer] | None = None  # pyright: ignore[reportIncompatibleVariableOverride]  # only read


class ObservedPod(PlannedPod, frozen=True):
    metadata: ObservedMeta = ObservedMeta()
    spec: ObservedSpec = ObservedSpec()
    status: ObservedStatus = ObservedStatus()

    @property
    def blind(self) -> dict[str, str]:
        """The containers that ask for no card: name -> value of the variable."""
        containers = (*(self.spec.init_containers or ()), *(self.spec.containers or ()))
        return blind((c.name, visible_devices(c.env)) for c in containers)

    @property
    def scheduled(self) -> ConditionWithReason | None:
        """The condition that the pod's scheduler sets."""
        return next((c for c in self.status.conditions or () if c.type == "PodScheduled"), None)


class EventSource(KubeStruct, frozen=True):
    component: str = ""


class Series(KubeStruct, frozen=True):
    count: int = 0
    last_observed_time: str | None = None


class Involved(KubeStruct, frozen=True):
    uid: str = ""


class Event(KubeStruct, frozen=True):
    """``v1`` Event. It has two forms of its times; the newer form leaves the fields of the older one empty."""

    metadata: ObjectMeta = ObjectMeta()
    involved_object: Involved = Involved()
    type: str = ""
    reason: str = ""
    message: str = ""
    count: int | None = None
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None
    reporting_component: str = ""
    source: EventSource = EventSource()
    series: Series | None = None

    @property
    def first(self) -> str:
        """When it first occurred, in RFC 3339."""
        return self.first_timestamp or self.event_time or self.last

    @property
    def last(self) -> str:
        """When it last occurred, in RFC 3339."""
        newest = self.series.last_observed_time if self.series else None
        return newest or self.last_timestamp or self.event_time or self.metadata.creation_timestamp or ""

    @property
    def times(self) -> int:
        return max(1, self.count or 0, self.series.count if self.series else 0)


class WebhookPresence(msgspec.Struct, frozen=True):
    """The configuration of the webhook, of which only the presence matters."""

    metadata: ObjectMeta = ObjectMeta()
