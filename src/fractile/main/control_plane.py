"""``fractile control-plane``: its command line, its server, and a term whenever the lease is this replica's.

Everything that works for the cluster is rebuilt for each term (``main.term``).
"""

import asyncio
import logging
from pathlib import Path

import click

from fractile.extender.naming import Naming
from fractile.globalplacement.counts import DecisionTally
from fractile.globalplacement.opt_in import GlobalPlacement
from fractile.kube import credentials
from fractile.main.debug_page import debugging
from fractile.main.debug_page import option as debug_option
from fractile.main.families import family_options
from fractile.main.grouped import grouped
from fractile.main.leading import BindObserver, LeaseOptions, ServedStage, in_terms, sentence_of
from fractile.main.leading import options as lease_options
from fractile.main.logs import log_options, set_up_logging
from fractile.main.loops import run_in_loop
from fractile.main.naming import options as naming_options
from fractile.main.term.classes import option as default_classes_option
from fractile.main.term.lead import lead
from fractile.main.term.options import ControlPlaneOptions, Program
from fractile.main.term.placing import options as placement_options
from fractile.main.term.placing import sweeping
from fractile.main.term.quota import QuotaOptions, quota_options
from fractile.main.term.scoring import ScoringOptions, scoring_options
from fractile.main.term.sharing import option as sharing_option
from fractile.main.term.webhook import WebhookOptions, webhook_options
from fractile.main.tracing import option as tracing_option
from fractile.main.tracing import tracing
from fractile.model.units import MemoryUnit
from fractile.serving.clients import OPEN_TO_ALL, clients_of
from fractile.serving.https_server import Options, serve

_SERVING = (
    click.option(
        "--listen", default="0.0.0.0:8443", show_default=True, metavar="HOST:PORT", help="Address to serve on."
    ),
    click.option("--tls-cert", type=click.Path(path_type=Path), help="Serving certificate (PEM)."),
    click.option("--tls-key", type=click.Path(path_type=Path), help="Its private key (PEM)."),
    click.option(
        "--client-ca",
        "client_cas",
        type=click.Path(path_type=Path),
        multiple=True,
        help="PEM file of the certificate authority (CA) that signs the certificates of the extender's callers; may be "
        "repeated. Required, unless --insecure-open-extender is given.",
    ),
    click.option(
        "--client-name",
        "client_names",
        multiple=True,
        metavar="NAME",
        help="Common name that such a certificate must have, such as system:kube-scheduler; may be repeated.",
    ),
    click.option(
        "--insecure-open-extender",
        is_flag=True,
        help="Without --client-ca: any client that reaches the port may bind waiting GPU pods "
        "(docs/operate/security.md).",
    ),
)


def _server(
    listen: str,
    tls_cert: Path | None,
    tls_key: Path | None,
    client_cas: tuple[Path, ...],
    client_names: tuple[str, ...],
    insecure_open_extender: bool,
) -> Options:
    server = Options(listen, tls_cert, tls_key)
    server.set_clients(clients_of(client_cas, client_names, insecure=insecure_open_extender))
    return server


@click.command("control-plane")
@click.option(
    "--kubeconfig", type=click.Path(path_type=Path), help="Kubeconfig file; default: the in-cluster credentials."
)
@grouped("server", _SERVING, _server)
@click.option(
    "--memory-unit",
    type=click.Choice([u.name for u in MemoryUnit]),
    default="MiB",
    show_default=True,
    help="What one unit of aliyun.com/gpu-mem is worth; must be the same on the control plane and all agents.",
)
@family_options
@scoring_options
@lease_options
@placement_options
@naming_options
@sharing_option
@default_classes_option
@quota_options
@webhook_options
@debug_option
@tracing_option
@log_options
@click.pass_context
def command(
    context: click.Context,
    kubeconfig: Path | None,
    server: Options,
    memory_unit: str,
    dialects: frozenset[str],
    slots: int,
    scoring: ScoringOptions,
    lease: LeaseOptions,
    placement: GlobalPlacement,
    naming: Naming,
    sharing: Path | None,
    default_classes: str,
    quota: QuotaOptions,
    webhook: WebhookOptions,
    debug_token_file: Path | None,
    otlp_endpoint: str,
    log_level: str,
    log_format: str,
) -> None:
    """Run the scheduler extender and the controllers.

    kube-scheduler calls it over HTTPS: POST /scheduler/filter, /scheduler/prioritize, /scheduler/bind and
    /scheduler/preempt. /healthz answers while the process is alive, /readyz while this replica leads and its ledger
    is rebuilt from the API server.
    """
    set_up_logging(log_level, log_format)
    options = ControlPlaneOptions(
        kubeconfig=kubeconfig,
        unit=MemoryUnit[memory_unit],
        slots=slots,
        dialects=dialects,
        scoring=scoring,
        sharing=sharing,
        default_classes=default_classes,
        quota=quota,
        webhook=webhook,
        lease=lease,
        placement=placement,
        naming=naming,
        debug_token_file=debug_token_file,
        traces=tracing(otlp_endpoint, service="fractile-control-plane"),
    )
    run_in_loop(run(server, options, context.find_object(BindObserver) or BindObserver()))


async def run(server: Options, options: ControlPlaneOptions, observer: BindObserver) -> None:
    """Serve until told to stop; lead whenever the lease is ours."""
    access = credentials.load(options.kubeconfig)
    debug = debugging(access, options.lease, options.debug_token_file)
    warning = OPEN_TO_ALL if server.clients is None else ""
    if warning:
        logging.getLogger(__name__).warning("insecure: %s", warning)
    tally = DecisionTally()
    stage = ServedStage(debug, tally, insecure_open=bool(warning))
    try:
        async with sweeping(options.placement, access, tally) as sweeper, asyncio.TaskGroup() as tasks:
            program = Program(access, stage, debug, tally, sweeper, warning)
            terms = in_terms(options.lease, access, lambda term: lead(term, options, program), observer)
            leading = tasks.create_task(terms)
            await serve(stage, server, stage.verb)
            leading.cancel()
    except BaseExceptionGroup as group:
        raise sentence_of(group) from None
    finally:
        if options.traces is not None:
            await asyncio.to_thread(options.traces.close)
