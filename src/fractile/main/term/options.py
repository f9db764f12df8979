"""The command line of ``fractile control-plane``, checked."""

from pathlib import Path

import msgspec

from fractile.dialects import table
from fractile.dialects.nvidia import SLOTS
from fractile.extender.app import ALL_OF_THE_BEST
from fractile.extender.naming import Naming
from fractile.globalplacement.counts import DecisionTally
from fractile.globalplacement.gates import GateSweeper
from fractile.globalplacement.opt_in import SCHEDULERS, GlobalPlacement
from fractile.kube.credentials import Credentials
from fractile.main.debug_page import Debug
from fractile.main.leading import LeaseOptions, ServedStage
from fractile.main.term.quota import QuotaOptions
from fractile.main.term.scoring import ScoringOptions
from fractile.main.term.webhook import WebhookOptions
from fractile.main.tracing import Tracing
from fractile.model.units import MemoryUnit


class ControlPlaneOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``kubeconfig`` None: the credentials of the pod that this runs in. ``sharing`` None: no rules on how cards are
    cut. ``default_classes`` "": no classes are created. ``traces`` None: nothing is traced."""

    kubeconfig: Path | None
    unit: MemoryUnit
    slots: int = SLOTS
    dialects: frozenset[str] = table.NAMES
    scoring: ScoringOptions = ScoringOptions()
    sharing: Path | None = None
    default_classes: str = ""
    quota: QuotaOptions = QuotaOptions()
    webhook: WebhookOptions = WebhookOptions()
    lease: LeaseOptions = LeaseOptions()
    placement: GlobalPlacement = SCHEDULERS
    naming: Naming = ALL_OF_THE_BEST
    debug_token_file: Path | None = None
    traces: Tracing | None = None


class Program(msgspec.Struct, frozen=True):
    """What outlives terms. ``sweeper`` None: no pods are gated. ``warning``: shown if any client may call the extender;
    otherwise ""."""

    access: Credentials
    stage: ServedStage
    debug: Debug
    tally: DecisionTally
    sweeper: GateSweeper | None
    warning: str
