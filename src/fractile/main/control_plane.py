"""Wiring of ``fractile control-plane``: watches -> ledger -> extender, and the loops beside them.

All of it is made anew for each term of this replica's lead (``main.leading``).
"""

import asyncio
import logging
import os
import time
from pathlib import Path

import click

from fractile.control.audit import Audit
from fractile.control.beliefs import Known
from fractile.control.doubt import Doubt
from fractile.control.faults import Faults, itself
from fractile.control.feed import CardFeed, ClassFeed, PodFeed
from fractile.control.gates import GateSweeper
from fractile.control.opting import SCHEDULERS, GlobalPlacement
from fractile.control.repair import Repair
from fractile.control.tally import Tally
from fractile.control.waiting import WaitingPods
from fractile.control.wakeup import WakeUp
from fractile.dialects import table
from fractile.dialects.nvidia import SLOTS
from fractile.extender.app import ALL_OF_THE_BEST, Extender, application, verbs
from fractile.extender.bind import CRASH_AT, Binder
from fractile.extender.expected import Expected
from fractile.extender.naming import Naming
from fractile.kube import credentials, paths
from fractile.kube.client import KubeClient
from fractile.kube.credentials import Credentials
from fractile.kube.events import EventRecorder
from fractile.kube.reflector import Reflector
from fractile.ledger.classes import ClassIndex
from fractile.ledger.ledger import Ledger
from fractile.main.classes import Classes, in_turn
from fractile.main.classes import option as default_classes_option
from fractile.main.clients import OPEN_TO_ALL, clients_of
from fractile.main.debugging import Debug, debugging
from fractile.main.debugging import option as debug_option
from fractile.main.families import family_options
from fractile.main.leading import LeaseOptions, Stage, Term, crash_point, in_terms, sentence_of
from fractile.main.leading import options as lease_options
from fractile.main.logs import log_options, set_up_logging
from fractile.main.loops import run_in_loop
from fractile.main.naming import options as naming_options
from fractile.main.placing import QPS, GlobalChoice, sweeping
from fractile.main.placing import options as placement_options
from fractile.main.preemption import Evictions
from fractile.main.quota import QuotaOptions, Quotas, quota_command_options
from fractile.main.rebuild import rebuild
from fractile.main.scoring import Scoring, ScoringOptions, options_of, scoring_options
from fractile.main.serving import Options, serve
from fractile.main.sharing import Sharing
from fractile.main.sharing import option as sharing_option
from fractile.main.tracing import Tracing, tracing
from fractile.main.tracing import option as tracing_option
from fractile.main.webhook import Admission, WebhookOptions, webhook_options
from fractile.metrics.control_plane import PlacementFigures
from fractile.model.units import MemoryUnit, PodUID
from fractile.wire.extended_resource import ExtendedResource
from fractile.wire.objects import ObjectMeta
from fractile.wire.queued import QueuedPod
from fractile.wire.resource_class import ResourceClass


@click.command("control-plane")
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="Credentials; in-cluster ones when not given.")
@click.option("--listen", default="0.0.0.0:8443", show_default=True, metavar="HOST:PORT", help="Where to serve.")
@click.option("--tls-cert", type=click.Path(path_type=Path), help="Serving certificate (PEM).")
@click.option("--tls-key", type=click.Path(path_type=Path), help="Its private key (PEM).")
@click.option(
    "--client-ca",
    "client_cas",
    type=click.Path(path_type=Path),
    multiple=True,
    help="PEM file of the certificate authority (CA) that signs the certificates of the extender's callers; may be "
    "given again. Required, unless --insecure-open-extender is given.",
)
@click.option(
    "--client-name",
    "client_names",
    multiple=True,
    metavar="NAME",
    help="A common name that such a certificate must have, such as system:kube-scheduler; may be given again.",
)
@click.option(
    "--insecure-open-extender",
    is_flag=True,
    help="Without --client-ca: anybody who reaches the port may bind waiting GPU pods (docs/security.md).",
)
@click.option(
    "--memory-unit",
    type=click.Choice([u.name for u in MemoryUnit]),
    default="MiB",
    show_default=True,
    help="What one unit of aliyun.com/gpu-mem is worth; the same on every agent of the cluster.",
)
@family_options
@scoring_options
@lease_options
@placement_options
@naming_options
@sharing_option
@default_classes_option
@quota_command_options
@webhook_options
@debug_option
@tracing_option
@log_options
def command(
    kubeconfig: Path | None,
    listen: str,
    tls_cert: Path | None,
    tls_key: Path | None,
    client_cas: tuple[Path, ...],
    client_names: tuple[str, ...],
    insecure_open_extender: bool,
    memory_unit: str,
    dialects: frozenset[str],
    slots: int,
    node_policy: str,
    mix: Path | None,
    mix_window: float,
    mix_pods: int,
    compiled: bool,
    lease: LeaseOptions,
    placement: GlobalPlacement,
    naming: Naming,
    sharing: Path | None,
    default_classes: str,
    quota_configmap: str,
    quota_others: str,
    webhook: WebhookOptions,
    debug_token_file: Path | None,
    otlp_endpoint: str,
    log_level: str,
    log_format: str,
) -> None:
    """Run the scheduler extender and the controllers.

    kube-scheduler calls it over HTTPS: POST /scheduler/filter, /scheduler/prioritize, /scheduler/bind and
    /scheduler/preempt. /healthz answers while the process lives, /readyz while this replica leads and its ledger is
    rebuilt from the API server.
    """
    set_up_logging(log_level, log_format)
    options = Options(listen, tls_cert, tls_key)
    options.set_clients(clients_of(client_cas, client_names, insecure=insecure_open_extender))
    run_in_loop(
        run(
            options,
            kubeconfig=kubeconfig,
            unit=MemoryUnit[memory_unit],
            slots=slots,
            dialects=dialects,
            scoring=options_of(node_policy, mix, mix_window, mix_pods, compiled=compiled),
            sharing=sharing,
            default_classes=default_classes,
            quota=QuotaOptions(quota_configmap, others=quota_others == "allow"),
            webhook=webhook,
            lease=lease,
            placement=placement,
            naming=naming,
            debug_token_file=debug_token_file,
            traces=tracing(otlp_endpoint, service="fractile-control-plane"),
        )
    )


async def run(
    options: Options,
    *,
    kubeconfig: Path | None,
    unit: MemoryUnit,
    slots: int = SLOTS,
    dialects: frozenset[str] = table.NAMES,
    scoring: ScoringOptions | None = None,
    sharing: Path | None = None,
    default_classes: str = "",
    quota: QuotaOptions | None = None,
    webhook: WebhookOptions | None = None,
    lease: LeaseOptions | None = None,
    placement: GlobalPlacement = SCHEDULERS,
    naming: Naming = ALL_OF_THE_BEST,
    debug_token_file: Path | None = None,
    traces: Tracing | None = None,
) -> None:
    """Serve until told to stop; lead whenever the lease is ours."""
    access = credentials.load(kubeconfig)
    debug = debugging(access, lease or LeaseOptions(), debug_token_file)
    is_open = options.clients is None
    if is_open:
        logging.getLogger(__name__).warning("insecure: %s", OPEN_TO_ALL)
    tally = Tally()
    stage = Stage(debug, tally, insecure_open=is_open)

    async def lead(term: Term) -> None:
        await _lead(
            term,
            stage,
            access,
            debug=debug,
            traces=traces,
            unit=unit,
            slots=slots,
            dialects=dialects,
            scoring=scoring or ScoringOptions(),
            sharing=sharing,
            default_classes=default_classes,
            quota=quota,
            webhook=webhook,
            placement=placement,
            naming=naming,
            tally=tally,
            sweeper=sweeper,
            warning=OPEN_TO_ALL if is_open else "",
        )

    try:
        async with sweeping(placement, access, tally) as sweeper, asyncio.TaskGroup() as tasks:
            leading = tasks.create_task(in_terms(lease or LeaseOptions(), access, lead))
            await serve(stage, options, stage.verb)
            leading.cancel()
    except BaseExceptionGroup as group:
        raise sentence_of(group) from None
    finally:
        if traces is not None:
            await asyncio.to_thread(traces.close)


async def _lead(
    term: Term,
    stage: Stage,
    access: Credentials,
    *,
    debug: Debug,
    traces: Tracing | None,
    unit: MemoryUnit,
    slots: int,
    dialects: frozenset[str],
    scoring: ScoringOptions,
    sharing: Path | None,
    default_classes: str,
    quota: QuotaOptions | None,
    webhook: WebhookOptions | None,
    placement: GlobalPlacement,
    naming: Naming,
    tally: Tally,
    sweeper: GateSweeper | None,
    warning: str,
) -> None:
    """Build the objects, connect them, run until cancelled."""
    async with (
        KubeClient(access, fence=term.left) as client,
        KubeClient(access, fence=term.left, qps=QPS, burst=QPS) as nominating,
    ):
        ledger = Ledger(time.monotonic, slots=slots)
        classes = ClassIndex(ledger)
        waiting = WaitingPods()
        events = EventRecorder(client, "fractile")
        faults = Faults()
        wakeup = WakeUp(
            ledger=ledger, waiting=waiting, client=client, wall_ns=time.time_ns, classes=classes, faults=faults
        )
        repair = Repair(
            ledger=ledger,
            client=client,
            unit=unit,
            warn=events.emit,
            wall_ns=time.time_ns,
            dialects=dialects,
            classes=classes,
            term=lambda: term.name,
            faults=faults,
        )
        pod_feed = PodFeed(
            ledger=ledger,
            waiting=waiting,
            unit=unit,
            warn=events.emit,
            freed=in_turn(wakeup.freed, lambda _: choice.placing.freed(), lambda _: nodes.policies.soon()),
            needs_repair=repair.request,
            dialects=dialects,
            eased=wakeup.eased,
            named=lambda uid: evictions.residents.named(uid),
        )
        cuts = Sharing(sharing, client, ledger, freed=pod_feed.freed, faults=faults) if sharing else None
        evictions = Evictions(client, ledger, waiting, classes, faults)
        class_feed = ClassFeed(classes, changed_class=wakeup.class_changed)
        quotas = Quotas(quota or QuotaOptions(), client, ledger, events, eased=wakeup.eased_everywhere)
        nodes = Scoring(scoring, client, ledger, unit=unit, dialects=dialects, faults=faults)
        upkeep = Classes(
            ledger,
            client,
            template=default_classes,
            dialects=dialects,
            node_changed=(
                lambda node: quotas.feed.node_changed(node.metadata),
                lambda node: nodes.feed.node_changed(node.metadata.name, node.status.allocatable),
                lambda node: choice.node_changed(node),
            ),
            node_gone=(quotas.feed.node_gone, nodes.feed.node_gone, lambda gone: choice.node_gone(gone)),
            faults=faults,
        )
        card_feed = CardFeed(ledger, freed=pod_feed.freed, shown=upkeep.control.card_shown)
        # Nobody waits for the classes: what is bound is judged by its placement, and who comes too early is woken.
        class_objects = Reflector(
            client,
            paths.resource_classes(),
            ResourceClass,
            changed=faults.each("classes", _meta, class_feed.changed, upkeep.control.class_changed),
            gone=faults.each("classes", itself, lambda gone: class_feed.gone(gone.name), upkeep.control.class_gone),
        )
        classed = [class_objects] if "class" in dialects else []  # else there may be no right to watch them
        audit = Audit(ledger=ledger, feed=pod_feed, client=client, warn=events.emit, faults=faults)
        doubt = Doubt(ledger=ledger, waiting=waiting, feed=pod_feed, client=client, faults=faults)
        cards = Reflector(
            client,
            paths.extended_resources(),
            ExtendedResource,
            changed=faults.each("cards", _meta, card_feed.changed),
            gone=faults.each("cards", itself, lambda gone: card_feed.gone(gone.name), upkeep.control.card_gone),
        )
        pods = Reflector(
            client,
            paths.pods(),
            QueuedPod,
            changed=faults.each(
                "pods",
                _meta,
                pod_feed.changed,
                evictions.residents.changed,
                nodes.feed.pod_changed,
                upkeep.control.pod_changed,
                lambda pod: choice.placing.pod_changed(pod),
                *([sweeper.changed] if sweeper else []),
            ),
            gone=faults.each(
                "pods",
                itself,
                lambda gone: pod_feed.gone(PodUID(gone.uid)),
                lambda gone: evictions.residents.gone(PodUID(gone.uid)),
                lambda gone: nodes.feed.pod_gone(PodUID(gone.uid)),
                upkeep.control.pod_gone,
                lambda gone: choice.placing.pod_gone(PodUID(gone.uid)),
                *([sweeper.gone] if sweeper else []),
            ),
            listed=pod_feed.listed,
        )
        binder = Binder(
            ledger=ledger,
            waiting=waiting,
            feed=pod_feed,
            client=client,
            unit=unit,
            wall_ns=time.time_ns,
            dialects=dialects,
            classes=classes,
            narrowed=nodes.policies.narrowed,
            reached=in_turn(term.reached, crash_point(os.environ.get(CRASH_AT, ""))),
            term=lambda: term.name,
            nominations=evictions.nominations,
        )
        choice = GlobalChoice(
            placement,
            nominating,
            ledger,
            classes=classes,
            scoring=nodes,
            nominations=evictions.nominations,
            unit=unit,
            dialects=dialects,
            feed=pod_feed,
            binder=binder,
            tally=tally,
            faults=faults,
        )
        rebuilt = asyncio.Event()

        def began() -> None:
            rebuilt.set()
            wakeup.eased_everywhere()

        def ready() -> bool:
            return rebuilt.is_set() and term.leading()

        expected = Expected(time.monotonic)
        extender = Extender(
            ledger=ledger,
            binder=binder,
            expected=expected,
            unit=unit,
            ready=ready,
            dialects=dialects,
            classes=classes,
            policies=nodes.policies,
            preemption=evictions.preemption,
            nominations=evictions.nominations,
            placing=choice.placing,
            trace=traces.trace if traces else None,
            naming=naming,
            undecided=wakeup.undecided,
        )
        admission = (
            Admission(
                webhook,
                client,
                ledger=ledger,
                classes=classes,
                known=lambda: ready() and all(watch.synced.is_set() for watch in classed),
                unit=unit,
                dialects=dialects,
                warn=events.emit,
                gate=lambda pod, namespace: ready() and choice.gates(pod, namespace),
            )
            if webhook and webhook.listen
            else None
        )

        def counted() -> PlacementFigures:
            return tally.figures(choice.placing.standing)

        first = [cards, upkeep.nodes, nodes.namespaces, *quotas.watches, *([cuts.nodes] if cuts else [])]

        def certified() -> bool | None:
            return admission.certified if admission else None

        pages = [
            quotas.metrics(
                waiting, ready, counted, insecure_open=bool(warning), faults=faults.counts, certified=certified
            )
        ]
        stage.show(application(extender, more=pages, warning=warning), verbs(extender))
        believed = Known(
            ledger=ledger,
            waiting=waiting,
            nominations=evictions.nominations,
            feeds=[*first, pods, *classed, evictions.budgets],
            expected=expected.__len__,
            quota_problem=lambda: quotas.feed.problem,
            options={
                "node-policy": scoring.policy,
                "memory-unit": unit.name,
                "dialects": ",".join(sorted(dialects)),
                "extender": warning or "for callers with a certificate of --client-ca",
            },
        )
        debug.lead(term, believed, ready)
        try:
            async with asyncio.TaskGroup() as tasks:
                for coroutine in (
                    cards.run(),
                    *[watch.run() for watch in classed],
                    rebuild(
                        [watch.synced for watch in first],
                        pods,
                        ledger,
                        quiet=term.quiet,
                        begin=repair.begin,
                        after=[repair.run, audit.run],
                        rebuilt=began,
                    ),
                    *quotas.loops(),
                    wakeup.run(),
                    doubt.run(),
                    events.run(),
                    evictions.budgets.run(),
                    choice.run(rebuilt),
                    *([sweeper.shown(pods.synced)] if sweeper else []),
                    *nodes.loops([cards.synced, upkeep.nodes.synced, pods.synced]),
                    *upkeep.loops([watch.synced for watch in (cards, *classed, pods)]),
                    *([cuts.rules.run(), cuts.nodes.run()] if cuts else []),
                    *(admission.loops() if admission else ()),
                ):
                    tasks.create_task(coroutine)
        finally:
            term.unsettled(ledger.unsettled)
            stage.clear()
            debug.clear()


def _meta(about: QueuedPod | ExtendedResource | ResourceClass) -> ObjectMeta:
    return about.metadata
