"""The watches of a term, and the callbacks of each, in order."""

from collections.abc import Coroutine
from typing import Any

from fractile.globalplacement.gates import GateSweeper
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.reflector import Reflector
from fractile.main.term.bookkeeping import Bookkeeping
from fractile.main.term.classes import ClassLoops
from fractile.main.term.deciders import Deciders
from fractile.main.term.options import ControlPlaneOptions
from fractile.model.units import PodUID
from fractile.reconcile.faults import itself
from fractile.watch.event_handlers import CardHandlers
from fractile.wire.fractile.extended_resource import ExtendedResource
from fractile.wire.fractile.resource_class import ResourceClass
from fractile.wire.kubernetes.objects import ObjectMeta
from fractile.wire.kubernetes.queued import QueuedPod


class Watches:
    """``classes`` is empty where the family is not served, since the right to watch them may be missing then. Nothing
    waits for classes: bound pods are judged by their placement, and pods that come too early are woken."""

    def __init__(
        self,
        bookkeeping: Bookkeeping,
        deciders: Deciders,
        client: KubeClient,
        options: ControlPlaneOptions,
        sweeper: GateSweeper | None,
    ) -> None:
        self._bookkeeping, self._deciders, self._sweeper = bookkeeping, deciders, sweeper
        quotas, scoring, choice = deciders.quotas.handlers, deciders.scoring.handlers, deciders.choice
        self.upkeep = ClassLoops(
            bookkeeping.ledger,
            client,
            template=options.default_classes,
            dialects=options.dialects,
            node_changed=(
                lambda node: quotas.node_changed(node.metadata),
                lambda node: scoring.node_changed(node.metadata.name, node.status.allocatable),
                choice.node_changed,
            ),
            node_gone=(quotas.node_gone, scoring.node_gone, choice.node_gone),
            faults=bookkeeping.faults,
        )
        handlers = CardHandlers(bookkeeping.ledger, freed=bookkeeping.pods.freed, shown=self.upkeep.control.card_shown)
        self.cards = Reflector(
            client,
            paths.extended_resources(),
            ExtendedResource,
            changed=bookkeeping.faults.each("cards", _meta, handlers.changed),
            gone=bookkeeping.faults.each(
                "cards", itself, lambda gone: handlers.gone(gone.name), self.upkeep.control.card_gone
            ),
        )
        self.pods = self._of_pods(client)
        self.classes = [self._of_classes(client)] if "class" in options.dialects else []

    @property
    def first(self) -> list[Reflector[Any]]:
        """The watches that must be synced before pods are handled."""
        cuts, quotas = self._deciders.cuts, self._deciders.quotas
        return [
            self.cards,
            self.upkeep.nodes,
            self._deciders.scoring.namespaces,
            *quotas.watches,
            *([cuts.nodes] if cuts else []),
        ]

    def loops(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """All but ``pods``, which the rebuild runs, and those of the deciders, which run their own."""
        synced = [watch.synced for watch in (self.cards, *self.classes, self.pods)]
        return (
            self.cards.run(),
            *[watch.run() for watch in self.classes],
            *self.upkeep.loops(synced),
            *([self._sweeper.shown(self.pods.synced)] if self._sweeper else []),
        )

    def _of_pods(self, client: KubeClient) -> Reflector[QueuedPod]:
        pods, assigned_pods = self._bookkeeping.pods, self._bookkeeping.evictions.assigned_pods
        scoring, placing, control = self._deciders.scoring.handlers, self._deciders.choice.placing, self.upkeep.control
        sweeper = self._sweeper
        return Reflector(
            client,
            paths.pods(),
            QueuedPod,
            changed=self._bookkeeping.faults.each(
                "pods",
                _meta,
                pods.changed,
                assigned_pods.changed,
                scoring.pod_changed,
                control.pod_changed,
                placing.pod_changed,
                *([sweeper.changed] if sweeper else []),
            ),
            gone=self._bookkeeping.faults.each(
                "pods",
                itself,
                lambda gone: pods.gone(PodUID(gone.uid)),
                lambda gone: assigned_pods.gone(PodUID(gone.uid)),
                lambda gone: scoring.pod_gone(PodUID(gone.uid)),
                control.pod_gone,
                lambda gone: placing.pod_gone(PodUID(gone.uid)),
                *([sweeper.gone] if sweeper else []),
            ),
            listed=pods.listed,
        )

    def _of_classes(self, client: KubeClient) -> Reflector[ResourceClass]:
        handlers, control = self._bookkeeping.class_handlers, self.upkeep.control
        return Reflector(
            client,
            paths.resource_classes(),
            ResourceClass,
            changed=self._bookkeeping.faults.each("classes", _meta, handlers.changed, control.class_changed),
            gone=self._bookkeeping.faults.each(
                "classes", itself, lambda gone: handlers.gone(gone.name), control.class_gone
            ),
        )


def _meta(about: QueuedPod | ExtendedResource | ResourceClass) -> ObjectMeta:
    return about.metadata
