"""The options for kube-scheduler's configuration that ``scheduler-config`` and ``install-scheduler`` share."""

import functools
import re
from collections.abc import Callable
from typing import TypeVar

import click
import msgspec
from click.shell_completion import CompletionItem

from fractile.dialects import table
from fractile.dialects.dialect import ResourceKind as ResourceKind
from fractile.errors import WireError
from fractile.wire.kubernetes import scheduler_config as wire
from fractile.wire.kubernetes import scoring
from fractile.wire.kubernetes.scheduler_config import ExtenderConfig, Form, SchedulerConfigOptions, Tls

T = TypeVar("T")

_URL = re.compile(r"https?://[^\s/]+(/\S*)?")
_PROFILE = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)
_FRACTILE = "fractile"
_POLICIES = [*(str(kind) for kind in scoring.StrategyKind), _FRACTILE]
RESOURCES = "nvidia.com/gpu=5,cpu=1,memory=1"
SHAPE = "0:0,100:10"


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """The options as given on the command line."""

    policy: str | None
    resources: str
    shape: str
    weight: int
    profile: str
    extender: str | None
    tls_ca: str
    tls_cert: str
    tls_key: str
    tls_server_name: str
    tls_insecure: bool
    insecure_open_extender: bool
    form: Form | None

    @property
    def tls(self) -> Tls:
        return Tls(self.tls_ca, self.tls_cert, self.tls_key, self.tls_server_name, self.tls_insecure)


_OPTIONS = [
    click.option(
        "--policy",
        type=click.Choice(_POLICIES),
        help=f"How kube-scheduler scores nodes; {_FRACTILE}: by its own defaults, so that the extender decides. "
        f"Default: {scoring.StrategyKind.RATIO}, with --extender {_FRACTILE}.",
    ),
    click.option(
        "--resources", default=RESOURCES, show_default=True, metavar="NAME=WEIGHT,...", help="Weights 1 to 100."
    ),
    click.option("--shape", default=SHAPE, show_default=True, metavar="PERCENT:SCORE,...", help="Scores 0 to 10."),
    click.option(
        "--weight",
        type=click.IntRange(1, 10_000),
        default=wire.WEIGHT,
        show_default=True,
        help="Weight of the policy, and of the extender, among kube-scheduler's other scores.",
    ),
    click.option(
        "--profile",
        default=wire.DEFAULT_PROFILE,
        show_default=True,
        metavar="NAME",
        help="Only for pods with this schedulerName; others are scheduled as before.",
    ),
    click.option(
        "--extender", metavar="URL", help="Address of the control plane, such as https://HOST:8443/scheduler."
    ),
    click.option(
        "--tls-ca",
        default="",
        metavar="FILE",
        help="PEM file of the certificate authority (CA) that signed the extender's certificate.",
    ),
    click.option(
        "--tls-cert",
        default="",
        metavar="FILE",
        help="Client certificate that kube-scheduler presents to the extender.",
    ),
    click.option("--tls-key", default="", metavar="FILE", help="Its key."),
    click.option(
        "--tls-server-name", default="", metavar="NAME", help="Name in the extender's certificate, if not the host."
    ),
    click.option("--tls-insecure", is_flag=True, help="Do not check the extender's certificate."),
    click.option(
        "--insecure-open-extender",
        is_flag=True,
        help="Present no client certificate; the control plane must run with this option too.",
    ),
    click.option(
        "--form",
        type=click.Choice(["policy", "config"]),
        help="policy: a Policy file, the default up to 1.22 without --profile. config: KubeSchedulerConfiguration.",
    ),
]


def complete_version(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """All supported versions."""
    known = (f"1.{minor}" for minor in range(wire.OLDEST, wire.NEWEST + 1))
    return [CompletionItem(version) for version in known if version.startswith(incomplete)]


def options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options; the command gets them as one argument ``chosen``."""

    @functools.wraps(function)
    def packed(**given: object) -> None:
        fields = {name: given.pop(name) for name in Chosen.__struct_fields__}
        function(chosen=msgspec.convert(fields, Chosen), **given)

    command: Callable[..., None] = packed
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def version(text: str) -> int:
    """The minor version that ``--kubernetes`` names."""
    return _parsed(text, "--kubernetes", wire.minor_of)


def wish(chosen: Chosen, minor: int, *, kubeconfig: str) -> SchedulerConfigOptions:
    """The options, checked; an invalid combination is a usage error."""
    wanted = chosen.policy or (_FRACTILE if chosen.extender else str(scoring.StrategyKind.RATIO))
    if wanted == _FRACTILE and not chosen.extender:
        raise click.UsageError(f"--policy {_FRACTILE} needs --extender URL")
    if not _PROFILE.fullmatch(chosen.profile):
        raise click.BadParameter(
            f"{chosen.profile!r} is not a name that spec.schedulerName may have", param_hint="--profile"
        )
    strategy = None
    if wanted != _FRACTILE:
        points = _parsed(chosen.shape, "--shape", scoring.parse_shape)
        strategy = scoring.Strategy(
            scoring.StrategyKind(wanted), _parsed(chosen.resources, "--resources", scoring.parse_resources), points
        )
    plain: Form = "policy" if minor <= wire.LAST_WITH_POLICY and chosen.profile == wire.DEFAULT_PROFILE else "config"
    return SchedulerConfigOptions(
        minor=minor,
        form=chosen.form or plain,
        strategy=strategy,
        extender=_extender(chosen.extender, chosen) if chosen.extender else None,
        weight=chosen.weight,
        profile=chosen.profile,
        kubeconfig=kubeconfig,
    )


def _extender(url: str, chosen: Chosen) -> ExtenderConfig:
    tls = chosen.tls
    if not _URL.fullmatch(url):
        raise click.BadParameter(f"{url!r} is not a URL that begins with http:// or https://", param_hint="--extender")
    if url.startswith("https://") and not (tls.ca or tls.insecure):
        # Otherwise kube-scheduler would silently not check the certificate (extender.go, makeTransport).
        raise click.UsageError("an extender with https:// needs --tls-ca FILE, or --tls-insecure")
    if url.startswith("http://") and tls != Tls():
        raise click.UsageError("--tls-... options need an extender with https://")
    if url.startswith("https://") and not (tls.cert or tls.key or chosen.insecure_open_extender):
        raise click.UsageError(
            "the extender answers only callers with a certificate: give --tls-cert FILE and --tls-key FILE, with the "
            "chart from the Secret fractile-extender-client (docs/operate/install.md); or --insecure-open-extender, "
            "where the control plane runs with that"
        )
    if tls.cert and chosen.insecure_open_extender:
        raise click.UsageError("--tls-cert and --insecure-open-extender exclude each other")
    if bool(tls.cert) != bool(tls.key):
        raise click.UsageError("--tls-cert and --tls-key belong together")
    if tls.ca and tls.insecure:
        raise click.UsageError("--tls-ca and --tls-insecure exclude each other; kube-scheduler refuses both at once")
    managed = {name: kind is ResourceKind.AMOUNT for name, kind in table.managed().items()}
    return ExtenderConfig(url.rstrip("/"), managed, tls, chosen.weight)


def _parsed(text: str, option: str, parse: Callable[[str], T]) -> T:
    try:
        return parse(text)
    except WireError as e:
        raise click.BadParameter(str(e), param_hint=option) from None
