"""``fractile scheduler-config``: prints a configuration for kube-scheduler. Offline; needs no cluster."""

import re
from collections.abc import Callable
from typing import TypeVar

import click
from click.shell_completion import CompletionItem

from fractile.cli import scheduler_config_text
from fractile.dialects import table
from fractile.dialects.dialect import Kind as ResourceKind
from fractile.errors import WireError
from fractile.wire import scheduler_config as wire
from fractile.wire import scoring
from fractile.wire.scheduler_config import Extender, Form, Tls, Wish

T = TypeVar("T")

_URL = re.compile(r"https?://[^\s/]+(/\S*)?")
_PROFILE = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)
_FRACTILE = "fractile"
_POLICIES = [*(str(kind) for kind in scoring.Kind), _FRACTILE]
RESOURCES = "nvidia.com/gpu=5,cpu=1,memory=1"
SHAPE = "0:0,100:10"


def complete_version(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """All that are served."""
    known = (f"1.{minor}" for minor in range(wire.OLDEST, wire.NEWEST + 1))
    return [CompletionItem(version) for version in known if version.startswith(incomplete)]


@click.command("scheduler-config")
@click.option(
    "--kubernetes",
    required=True,
    metavar="VERSION",
    shell_complete=complete_version,
    help="Of kube-scheduler, 1.20 to 1.36.",
)
@click.option(
    "--policy",
    type=click.Choice(_POLICIES),
    help=f"How kube-scheduler scores nodes; {_FRACTILE}: as it does by itself, the extender decides. "
    f"Default: {scoring.Kind.RATIO}, with --extender {_FRACTILE}.",
)
@click.option("--resources", default=RESOURCES, show_default=True, metavar="NAME=WEIGHT,...", help="Weights 1 to 100.")
@click.option("--shape", default=SHAPE, show_default=True, metavar="PERCENT:SCORE,...", help="Scores 0 to 10.")
@click.option(
    "--weight",
    type=click.IntRange(1, 10_000),
    default=wire.WEIGHT,
    show_default=True,
    help="Of the policy, and of the extender, among kube-scheduler's other scores.",
)
@click.option(
    "--profile",
    default=wire.DEFAULT_PROFILE,
    show_default=True,
    metavar="NAME",
    help="Only for pods with this schedulerName; others are scheduled as before.",
)
@click.option("--extender", metavar="URL", help="Of the control plane, such as https://HOST:8443/scheduler.")
@click.option("--tls-ca", default="", metavar="FILE", help="Authority of the extender's certificate.")
@click.option("--tls-cert", default="", metavar="FILE", help="Certificate that kube-scheduler shows to the extender.")
@click.option("--tls-key", default="", metavar="FILE", help="Its key.")
@click.option("--tls-server-name", default="", metavar="NAME", help="In the extender's certificate, if not the host.")
@click.option("--tls-insecure", is_flag=True, help="Believe whoever answers.")
@click.option(
    "--form",
    type=click.Choice(["policy", "config"]),
    help="policy: a Policy file, the default up to 1.22 without --profile. config: KubeSchedulerConfiguration.",
)
@click.option("--kubeconfig", default=wire.KUBECONFIG, show_default=True, metavar="FILE", help="Of kube-scheduler.")
@click.option(
    "--install",
    type=click.Choice(["kubeadm"]),
    help="Print what the installer must be told instead of the configuration itself.",
)
def command(
    kubernetes: str,
    policy: str | None,
    resources: str,
    shape: str,
    weight: int,
    profile: str,
    extender: str | None,
    tls_ca: str,
    tls_cert: str,
    tls_key: str,
    tls_server_name: str,
    tls_insecure: bool,
    form: Form | None,
    kubeconfig: str,
    install: str | None,
) -> None:
    """Print a configuration for kube-scheduler that packs nodes, asks Fractile's extender, or both.

    \b
    fractile scheduler-config --kubernetes 1.28 --resources nvidia.com/gpu=5,cpu=3,memory=1
    fractile scheduler-config --kubernetes 1.20 --policy most-allocated --resources cpu,memory
    fractile scheduler-config --kubernetes 1.36 --profile packed --policy most-allocated
    fractile scheduler-config --kubernetes 1.36 --extender https://fractile:8443/scheduler --tls-ca /etc/ca.pem
    fractile scheduler-config --kubernetes 1.33 --install kubeadm

    Its first lines say where it goes. Each version is accepted by the real kube-scheduler: docs/scheduler-config.md.
    """
    tls = Tls(tls_ca, tls_cert, tls_key, tls_server_name, tls_insecure)
    wanted = policy or (_FRACTILE if extender else str(scoring.Kind.RATIO))
    if wanted == _FRACTILE and not extender:
        raise click.UsageError(f"--policy {_FRACTILE} needs --extender URL")
    if not _PROFILE.fullmatch(profile):
        raise click.BadParameter(f"{profile!r} is not a name that spec.schedulerName may have", param_hint="--profile")
    minor = _parsed(kubernetes, "--kubernetes", wire.minor_of)
    strategy = None
    if wanted != _FRACTILE:
        points = _parsed(shape, "--shape", scoring.parse_shape)
        strategy = scoring.Strategy(
            scoring.Kind(wanted), _parsed(resources, "--resources", scoring.parse_resources), points
        )
    plain: Form = "policy" if minor <= wire.LAST_WITH_POLICY and profile == wire.DEFAULT_PROFILE else "config"
    wish = Wish(
        minor=minor,
        form=form or plain,
        strategy=strategy,
        extender=_extender(extender, tls, weight) if extender else None,
        weight=weight,
        profile=profile,
        kubeconfig=kubeconfig,
    )
    text = scheduler_config_text.configuration(wish)  # also with --install: a wrong wish is refused
    click.echo(scheduler_config_text.kubeadm(wish) if install else text, nl=False)


def _extender(url: str, tls: Tls, weight: int) -> Extender:
    if not _URL.fullmatch(url):
        raise click.BadParameter(f"{url!r} is not a URL that begins with http:// or https://", param_hint="--extender")
    if url.startswith("https://") and not (tls.ca or tls.insecure):
        # kube-scheduler would not check the certificate, and would not say so (extender.go, makeTransport).
        raise click.UsageError("an extender with https:// needs --tls-ca FILE, or --tls-insecure")
    if url.startswith("http://") and tls != Tls():
        raise click.UsageError("--tls-... options need an extender with https://")
    if bool(tls.cert) != bool(tls.key):
        raise click.UsageError("--tls-cert and --tls-key belong together")
    if tls.ca and tls.insecure:
        raise click.UsageError("--tls-ca and --tls-insecure exclude each other; kube-scheduler refuses both at once")
    managed = {name: kind is ResourceKind.AMOUNT for name, kind in table.managed().items()}
    return Extender(url.rstrip("/"), managed, tls, weight)


def _parsed(text: str, option: str, parse: Callable[[str], T]) -> T:
    try:
        return parse(text)
    except WireError as e:
        raise click.BadParameter(str(e), param_hint=option) from None
