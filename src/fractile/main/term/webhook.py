"""Wiring of the admission webhook: certificates, configurations, settings of namespaces, and its server."""

import socket
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from fractile.admission.app import Gate, Settings, WebhookApp, no_gate
from fractile.admission.capacity import ClusterCapacity
from fractile.admission.configuration import Configuration
from fractile.admission.keeper import FileKeeper, SecretKeeper, ServedCertificate, Warn
from fractile.admission.node_names import NodeNames
from fractile.admission.schedulers import Schedulers
from fractile.admission.validate import Privileged
from fractile.dialects import table
from fractile.errors import SetupError
from fractile.extender.policies import valid
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.events import ObjectRef
from fractile.kube.reflector import Reflector
from fractile.ledger.classes import ClassIndex, resolve
from fractile.ledger.ledger import Ledger
from fractile.main.grouped import grouped
from fractile.model.units import MemoryUnit
from fractile.serving.https_server import Options, listening_socket
from fractile.serving.webhook_server import serve
from fractile.wire.kubernetes.objects import Namespace

NAMESPACE = "fractile-system"
SECRET = "fractile-webhook"
SERVICE = "fractile-webhook"


class WebhookOptions(msgspec.Struct, frozen=True):
    """``listen`` empty: there is no webhook."""

    listen: str = ""
    names: tuple[str, ...] = ()
    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    scheduler: str = ""
    privileged: Privileged = Privileged.REFUSE


_NAMES = (f"{SERVICE}.{NAMESPACE}.svc", f"{SERVICE}.{NAMESPACE}.svc.cluster.local")
_PEM: Any = click.Path(path_type=Path)

_OPTIONS = (
    click.option(
        "--webhook",
        default="",
        metavar="HOST:PORT",
        help="Serve the admission webhook on this address (docs/operate/webhook.md).",
    ),
    click.option(
        "--webhook-names",
        default=",".join(_NAMES),
        show_default=True,
        metavar="NAME,...",
        help="Names and addresses by which the API server calls the webhook; a certificate that Fractile makes is "
        "valid for these.",
    ),
    click.option(
        "--webhook-cert",
        type=_PEM,
        metavar="PEM",
        help="The webhook's certificate, if another program makes it, such as cert-manager. Read again when it "
        "changes.",
    ),
    click.option("--webhook-key", type=_PEM, metavar="PEM", help="The private key of that certificate."),
    click.option(
        "--webhook-ca",
        type=_PEM,
        metavar="PEM",
        help="The certificate authority (CA) that signed that certificate; it is written into the webhook "
        "configurations.",
    ),
    click.option(
        "--webhook-scheduler",
        default="",
        metavar="NAME",
        help="The scheduler for GPU pods that name none; a namespace's label fractile.dev/scheduler overrides it.",
    ),
    click.option(
        "--privileged",
        type=click.Choice([p.value for p in Privileged]),
        default=Privileged.REFUSE.value,
        show_default=True,
        help="What to do about privileged containers that ask for GPUs: they see all cards of their node.",
    ),
)


def _options(
    *,
    webhook: str,
    webhook_names: str,
    webhook_cert: Path | None,
    webhook_key: Path | None,
    webhook_ca: Path | None,
    webhook_scheduler: str,
    privileged: str,
) -> WebhookOptions:
    return _checked(
        WebhookOptions(
            listen=webhook,
            names=tuple(name.strip() for name in webhook_names.split(",") if name.strip()),
            cert=webhook_cert,
            key=webhook_key,
            ca=webhook_ca,
            scheduler=webhook_scheduler,
            privileged=Privileged(privileged),
        )
    )


def _checked(options: WebhookOptions) -> WebhookOptions:
    if (options.cert is None) != (options.key is None):
        raise SetupError("--webhook-cert and --webhook-key go together; give both or neither")
    if not options.names and options.cert is None:
        raise SetupError("--webhook-names is empty; give the names by which the API server calls the webhook")
    return options


webhook_options = grouped("webhook", _OPTIONS, _options)


class Admission:
    """The webhook with everything that it needs. ``known`` says whether all cards and classes of the cluster are read;
    ``warn`` reports that there is no certificate."""

    def __init__(
        self,
        options: WebhookOptions,
        client: KubeClient,
        *,
        ledger: Ledger,
        classes: ClassIndex,
        known: Callable[[], bool],
        unit: MemoryUnit,
        dialects: frozenset[str],
        warn: Warn,
        gate: Gate = no_gate,
    ) -> None:
        self._listening: socket.socket = listening_socket(Options(options.listen, None, None, option="--webhook"))
        self._schedulers = Schedulers(options.scheduler)
        self._node_names = NodeNames()
        self._webhook = WebhookApp(
            classes=classes,
            cluster=ClusterCapacity(ledger, lambda request: resolve(request, classes)),
            known=known,
            scheduler_of=self._schedulers.of,
            names_node=self._node_names.allowed,
            gate=gate,
            settings=Settings(
                unit=unit,
                dialects=dialects,
                resources=_resources(dialects),
                privileged=options.privileged,
                known_policy=valid,
            ),
        )
        self._served = ServedCertificate()
        self._configuration = Configuration(client, lambda: self._served.bundle)
        self._keeper = self._make_keeper(options, client, warn)
        self._writes_bundle = options.cert is None or options.ca is not None
        self._namespaces = Reflector(
            client,
            paths.namespaces(),
            Namespace,
            changed=self._namespace,
            gone=lambda gone: self._namespace_gone(gone.name),
        )

    def loops(self) -> Sequence[Coroutine[Any, Any, None]]:
        """Everything that runs as long as the program."""
        return (
            self._keeper.run(),
            *((self._configuration.run(),) if self._writes_bundle else ()),
            self._namespaces.run(),
            self._serve(),
        )

    @property
    def certified(self) -> bool:
        """Whether it holds a certificate; without one no connection to it succeeds."""
        return self._served.loaded.is_set()

    def _namespace(self, namespace: Namespace) -> None:
        self._schedulers.changed(namespace)
        self._node_names.changed(namespace)

    def _namespace_gone(self, name: str) -> None:
        self._schedulers.gone(name)
        self._node_names.gone(name)

    async def _serve(self) -> None:
        with self._listening:  # the next term of this process listens there again
            await self._served.loaded.wait()
            await serve(self._webhook, self._listening, self._served.context)

    def _make_keeper(self, options: WebhookOptions, client: KubeClient, warn: Warn) -> SecretKeeper | FileKeeper:
        if options.cert is not None and options.key is not None:
            return FileKeeper(self._served, cert=options.cert, key=options.key, ca=options.ca)
        return SecretKeeper(
            client,
            self._served,
            secret=ObjectRef("Secret", NAMESPACE, SECRET, ""),
            names=options.names,
            published=self._configuration.published,
            now=lambda: datetime.now(UTC),
            warn=warn,
        )


def _resources(dialects: frozenset[str]) -> frozenset[str]:
    return frozenset(r for dialect in table.DIALECTS if dialect.name in dialects for r in dialect.resources)
