"""Every metric of the control plane, and its page. Pure. docs/reference/metrics-control-plane.md lists them (a test
compares).

The program's own metrics come first, then limits, then holds: if there are too many series, the last are left out, and
the page says how many. Labels name namespaces, classes, models and pools, never pods.
"""

from collections.abc import Iterable, Mapping

import msgspec

from fractile.metrics.exposition import Distribution, Family, MetricsPage

LIMIT = 20_000  # series; two for each limit, and one for each class, model and pool of a namespace

CONTROL_PLANE = Family("fractile_control_plane", "info", "The control plane.", ("version",))
READY = Family("fractile_control_plane_ready", "gauge", "Whether the ledger is rebuilt.", ())
OPEN = Family(
    "fractile_control_plane_insecure_open",
    "gauge",
    "Whether any client may call the extender without a certificate.",
    (),
)
CERTIFIED = Family(
    "fractile_control_plane_webhook_certificate", "gauge", "Whether the webhook of the leader holds a certificate.", ()
)
HANDSHAKES = Family(
    "fractile_control_plane_failed_handshakes",
    "counter",
    "TLS handshakes that failed, as with a wrong certificate.",
    (),
)
NODES = Family("fractile_ledger_nodes", "gauge", "Nodes with cards that take pods.", ())
CARDS = Family("fractile_ledger_cards", "gauge", "Cards and other devices that take pods.", ())
PODS = Family("fractile_ledger_pods", "gauge", "Pods that hold cards.", ("state",))
CONFLICTS = Family("fractile_ledger_conflicts", "gauge", "Pods whose placement exceeds what the cards have.", ())
DRIFT = Family("fractile_ledger_drift", "counter", "Holds that differed from the API server, and were corrected.", ())
FAULTS = Family("fractile_control_plane_faults", "counter", "Objects that caused an error in Fractile.", ("task",))
WAITING = Family("fractile_waiting_pods", "gauge", "Pods that ask for cards and are bound to no node.", ())
QUOTA_READ = Family("fractile_quota_read", "gauge", "Whether the ConfigMap of quotas is valid.", ())
QUOTA_NAMES = Family("fractile_quota_namespaces", "gauge", "Namespaces that the quotas in force name.", ())
LIMITS = Family("fractile_quota_limit_cards", "gauge", "Cards that a namespace may hold.", ("namespace", "model"))
USED = Family("fractile_quota_used_cards", "gauge", "Cards that it holds under that limit.", ("namespace", "model"))
HELD = Family(
    "fractile_namespace_held_cards", "gauge", "Cards that a namespace holds.", ("namespace", "class", "model", "pool")
)
PLACING = Family("fractile_placement_pods", "gauge", "Pods whose node is chosen over all nodes.", ("state",))
DECISIONS = Family("fractile_placement_decisions", "counter", "Decisions on the node of a pod.", ("decision",))
ENDED = Family("fractile_placement_reservations_ended", "counter", "Ends of a pod's reservation.", ("how",))
GATES = Family("fractile_placement_gates_removed", "counter", "Scheduling gates that were removed.", ("by",))
NOMINATION = Family("fractile_placement_nomination_seconds", "histogram", "From seeing a pod to nominating it.", ())
CPU = Family("process_cpu_seconds", "counter", "Processor time of the control plane.", ())
RSS = Family("process_resident_memory_bytes", "gauge", "Resident memory of the control plane.", ())
FDS = Family("process_open_fds", "gauge", "Open file descriptors of the control plane.", ())
TASKS = Family("fractile_control_plane_tasks", "gauge", "Tasks of its event loop.", ())
DROPPED = Family("fractile_control_plane_dropped_series", "gauge", "Series left out of this page by its limit.", ())


class Limited(msgspec.Struct, frozen=True):
    """One limit of one namespace, in percent of a card. ``model`` is the name in the quota."""

    namespace: str
    model: str
    limit: int
    used: int


class NamespaceHold(msgspec.Struct, frozen=True):
    """What a namespace holds, in percent of a card."""

    namespace: str
    device_class: str
    model: str
    pool: str
    percent: int


class PlacementFigures(msgspec.Struct, frozen=True):
    """Figures of placement over all nodes: pods by state; decisions, ends of reservations and removed gates by kind
    since the program started; and the seconds from seeing a pod to nominating it."""

    pods: Mapping[str, int]
    decisions: Mapping[str, int]
    ended: Mapping[str, int]
    gates: Mapping[str, int]
    seconds: Distribution


class ControlPlaneFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of the control plane and of its ledger; times in seconds."""

    version: str
    ready: bool
    insecure_open: bool = False
    certified: bool | None = None  # None: this replica serves no webhook
    failed_handshakes: int = 0
    nodes: int
    cards: int
    assumed: int
    bound: int
    conflicts: int
    drifted: int = 0
    faults: Mapping[str, int] = {}
    waiting: int
    quota_read: bool
    quota_namespaces: int
    cpu: float
    resident: int | None  # bytes
    descriptors: int | None = None
    tasks: int | None = None  # of the event loop
    placement: PlacementFigures | None = None
    limits: Iterable[Limited] = ()
    held: Iterable[NamespaceHold] = ()


def page(figures: ControlPlaneFigures, *, limit: int = LIMIT) -> MetricsPage:
    """All series, each label combination once: holds with equal labels are added up."""
    made = MetricsPage(limit=limit)
    _own(made, figures)
    if figures.placement is not None:
        _placement(made, figures.placement)
    for each in figures.limits:
        made.add(LIMITS, each.limit / 100, each.namespace, each.model)
        made.add(USED, each.used / 100, each.namespace, each.model)
    sums: dict[tuple[str, str, str, str], int] = {}
    for held in figures.held:
        labels = held.namespace, held.device_class, held.model, held.pool
        sums[labels] = sums.get(labels, 0) + held.percent
    for labels, percent in sums.items():
        made.add(HELD, percent / 100, *labels)
    made.always(DROPPED, made.dropped)
    return made


def _placement(made: MetricsPage, figures: PlacementFigures) -> None:
    for family, counts in (
        (PLACING, figures.pods),
        (DECISIONS, figures.decisions),
        (ENDED, figures.ended),
        (GATES, figures.gates),
    ):
        for label, count in counts.items():
            made.always(family, count, label)
    made.distribution(NOMINATION, figures.seconds)


def _own(made: MetricsPage, figures: ControlPlaneFigures) -> None:
    made.always(CONTROL_PLANE, 1, figures.version)
    made.always(READY, int(figures.ready))
    made.always(OPEN, int(figures.insecure_open))
    if figures.certified is not None:
        made.always(CERTIFIED, int(figures.certified))
    made.always(HANDSHAKES, figures.failed_handshakes)
    made.always(NODES, figures.nodes)
    made.always(CARDS, figures.cards)
    made.always(PODS, figures.assumed, "assumed")
    made.always(PODS, figures.bound, "bound")
    made.always(CONFLICTS, figures.conflicts)
    made.always(DRIFT, figures.drifted)
    for task, count in sorted(figures.faults.items()):
        made.always(FAULTS, count, task)
    made.always(WAITING, figures.waiting)
    made.always(QUOTA_READ, int(figures.quota_read))
    made.always(QUOTA_NAMES, figures.quota_namespaces)
    made.always(CPU, figures.cpu)
    if figures.resident is not None:
        made.always(RSS, figures.resident)
    if figures.descriptors is not None:
        made.always(FDS, figures.descriptors)
    if figures.tasks is not None:
        made.always(TASKS, figures.tasks)
