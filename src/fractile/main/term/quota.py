"""Wiring of quotas and of the control plane's metrics: ConfigMap and labels of nodes -> ledger -> /metrics."""

import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import click
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fractile.debug.figures import figures
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.events import EventRecorder
from fractile.kube.reflector import Reflector
from fractile.ledger.ledger import Ledger
from fractile.main.grouped import grouped
from fractile.metrics.control_plane import PlacementFigures, page
from fractile.metrics.exposition import OPENMETRICS, TEXT, wants_openmetrics
from fractile.reconcile.kept_quotas import QuotaKeeper
from fractile.serving.paced import Paced
from fractile.watch.quotas import QuotaHandlers
from fractile.watch.waiting_pods import WaitingPods
from fractile.wire.files.quota_file import DEFAULT_SOURCE, KEPT
from fractile.wire.kubernetes.objects import ConfigMap


class QuotaOptions(msgspec.Struct, frozen=True):
    """``source``: NAMESPACE/NAME of the ConfigMap, "" for none. ``others``: whether namespaces that it does not name
    may use cards."""

    source: str = DEFAULT_SOURCE
    others: bool = True


def _source(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    namespace, slash, name = text.partition("/")
    if text and not (namespace and slash and name and "/" not in name):
        raise click.BadParameter(f"{text!r} is not NAMESPACE/NAME; give for instance {DEFAULT_SOURCE}")
    return text


_OPTIONS = (
    click.option(
        "--quota-configmap",
        default=DEFAULT_SOURCE,
        show_default=True,
        metavar="NAMESPACE/NAME",
        callback=_source,
        help='ConfigMap with the quotas of namespaces (docs/operate/quota.md), read again when it changes; "" for '
        "none.",
    ),
    click.option(
        "--quota-others",
        type=click.Choice(["allow", "deny"]),
        default="allow",
        show_default=True,
        help="Whether namespaces that the ConfigMap does not name may use cards.",
    ),
)


def _options(quota_configmap: str, quota_others: str) -> QuotaOptions:
    return QuotaOptions(quota_configmap, others=quota_others == "allow")


quota_options = grouped("quota", _OPTIONS, _options)


class Quotas:
    """The watch of the ConfigMap; the watch of nodes must call ``handlers``. ``eased`` is called when a namespace may
    have more than before."""

    def __init__(
        self,
        options: QuotaOptions,
        client: KubeClient,
        ledger: Ledger,
        events: EventRecorder,
        *,
        eased: Callable[[], None],
    ) -> None:
        self._ledger = ledger
        self.handlers = QuotaHandlers(
            ledger.usage,
            options.source or "none",
            others=options.others,
            tell=events.emit,
            eased=eased,
            keep=lambda: self._keeper.changed(),
        )
        self._keeper = QuotaKeeper(
            client,
            location=KEPT,
            source=options.source,
            current=lambda: self.handlers.text,
            recall=self.handlers.recall,
        )
        namespace, _, name = options.source.partition("/")
        self.config = (
            Reflector(
                client,
                paths.config_maps(namespace),
                ConfigMap,
                changed=self.handlers.changed,
                gone=self.handlers.gone,
                field_selector=f"metadata.name={name}",
            )
            if options.source
            else None
        )

    @property
    def watches(self) -> list[Reflector[ConfigMap]]:
        """The watches that must be synced before pods are handled."""
        return [] if self.config is None else [self.config]  # an empty Reflector is false

    def loops(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """The loops to run."""
        return () if self.config is None else (self._follow(self.config), self._settle(self.config))

    async def _follow(self, config: Reflector[ConfigMap]) -> None:
        await self._keeper.first()
        await config.run()

    async def _settle(self, config: Reflector[ConfigMap]) -> None:
        await config.synced.wait()  # no timeout: without an API server there is nothing to keep
        self.handlers.synced()
        await self._keeper.run()

    def metrics(
        self,
        waiting: WaitingPods,
        ready: Callable[[], bool],
        placement: Callable[[], PlacementFigures],
        *,
        insecure_open: bool = False,
        faults: Mapping[str, int] | None = None,
        certified: Callable[[], bool | None] = lambda: None,
    ) -> Route:
        """``GET /metrics``. ``certified``: whether the webhook holds a certificate; None: there is no webhook."""

        def make(openmetrics: bool) -> bytes:
            made = page(
                figures(
                    self._ledger,
                    waiting,
                    ready=ready(),
                    quota_problem=self.handlers.problem,
                    placement=placement(),
                    insecure_open=insecure_open,
                    faults=faults,
                    certified=certified(),
                )
            )
            return made.render(openmetrics=openmetrics)

        paced = Paced(make, time.perf_counter)

        async def metrics(request: Request) -> Response:
            openmetrics = wants_openmetrics(request.headers.get("accept", ""))
            kind = OPENMETRICS if openmetrics else TEXT
            return Response(paced.page(openmetrics), headers={"content-type": kind})

        return Route("/metrics", metrics)
