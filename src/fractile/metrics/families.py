"""Every metric of the node agent. docs/reference/metrics.md explains them, with units and labels (a test compares)."""

from fractile.metrics.exposition import Family

_NODE = ("node",)
_CARD = ("node", "card")
_CONTAINER = ("node", "namespace", "pod", "container", "uid")
_SLICE = (*_CONTAINER, "card")
_GPU_MANAGER = ("pod_name", "namespace", "node", "container_name")

CARD = Family("fractile_card", "info", "A card of the node.", (*_CARD, "index", "model"))
CARD_HEALTHY = Family("fractile_card_healthy", "gauge", "Whether the card takes new pods.", _CARD)
CARD_MEMORY = Family("fractile_card_memory_bytes", "gauge", "Memory of the card.", _CARD)
CARD_USED = Family("fractile_card_memory_used_bytes", "gauge", "Memory in use, by the driver.", _CARD)
CARD_PROMISED = Family("fractile_card_memory_promised_bytes", "gauge", "Sum of the quotas of its containers.", _CARD)
CARD_CORES = Family("fractile_card_cores_promised_ratio", "gauge", "Sum of the shares of its containers.", _CARD)
CARD_BUSY = Family("fractile_card_utilization_ratio", "gauge", "Time with a kernel on the card, by the driver.", _CARD)
CARD_PROCESSES = Family("fractile_card_processes", "gauge", "Processes on the card, by the driver.", _CARD)
CARD_CONTAINERS = Family("fractile_card_containers", "gauge", "Containers that hold a slice of the card.", _CARD)

LIMIT = Family("fractile_container_memory_limit_bytes", "gauge", "Quota on the card.", _SLICE)
USED = Family("fractile_container_memory_used_bytes", "gauge", "Held on the card, by its ledger.", _SLICE)
PEAK = Family("fractile_container_memory_peak_bytes", "gauge", "Most that it ever held, by its ledger.", _SLICE)
DRIVER = Family("fractile_container_memory_driver_bytes", "gauge", "Held by its processes, by the driver.", _SLICE)
REFUSALS = Family("fractile_container_memory_refusals", "counter", "Allocations refused beyond the quota.", _SLICE)
CORES = Family("fractile_container_cores_request_ratio", "gauge", "Share of the card that is guaranteed.", _SLICE)
CORES_LIMIT = Family("fractile_container_cores_limit_ratio", "gauge", "Share that is never exceeded; 0: none.", _SLICE)
BUSY = Family("fractile_container_utilization_ratio", "gauge", "Time with its kernels, by the driver.", _SLICE)
SHARE = Family("fractile_container_share_held_ratio", "gauge", "Share of the last seconds, by the arbiter.", _SLICE)
HELD = Family("fractile_container_held_seconds", "counter", "Time that it held the card, by the arbiter.", _SLICE)
WAITED = Family("fractile_container_waiting_seconds", "counter", "Time that it waited for a turn.", _SLICE)
THROTTLED = Family("fractile_container_throttled_seconds", "counter", "Time held back by its own limit.", _SLICE)
GPU_TIME = Family("fractile_container_gpu_seconds", "counter", "GPU time, as its processes measured it.", _SLICE)
LAUNCHES = Family("fractile_container_launches", "counter", "Kernels launched while paced.", _SLICE)
PROCESSES = Family("fractile_container_processes", "gauge", "Live processes that its ledger knows.", _CONTAINER)
ISOLATED = Family("fractile_container_isolated", "gauge", "Whether its limits are enforced.", _CONTAINER)
READABLE = Family("fractile_container_ledger_readable", "gauge", "Whether its ledger is valid.", _CONTAINER)

OUTSIDE = Family(
    "fractile_outside_ledger_bytes",
    "gauge",
    "Use of a card that no ledger covers, as the driver sees it now.",
    (*_SLICE, "kind"),
)
OUTSIDE_FOUND = Family("fractile_outside_ledger_findings", "counter", "Such uses found.", (*_NODE, "kind"))
EVICTIONS = Family("fractile_outside_ledger_evictions", "counter", "Pods evicted because of such use.", _NODE)
KILLS = Family(
    "fractile_outside_ledger_kills", "counter", "Processes that outlived such an eviction.", (*_NODE, "outcome")
)

AGENT = Family("fractile_agent", "info", "The node agent.", (*_NODE, "version"))
RUNTIME = Family(
    "fractile_container_runtime",
    "info",
    "How the node's container runtime hands out cards.",
    (*_NODE, "runtime", "nvidia", "variable", "mode"),
)
AUDIT_UP = Family("fractile_agent_audit_up", "gauge", "Whether the driver's processes are compared.", _NODE)
ARBITER_UP = Family("fractile_agent_arbiter_up", "gauge", "Whether the arbiter answers.", _NODE)
LOOK_TIME = Family("fractile_agent_look_timestamp_seconds", "gauge", "When these figures were read.", _NODE)
LOOK_SPENT = Family("fractile_agent_look_duration_seconds", "gauge", "How long reading them took.", _NODE)
LOOKS = Family("fractile_agent_looks", "counter", "How often these figures were read.", _NODE)
LOOKS_LATE = Family("fractile_agent_looks_late", "counter", "How often reading took too long.", _NODE)
VCUDA = Family(
    "fractile_virtual_manager_registrations", "counter", "Registrations by gpu-manager's library.", (*_NODE, "outcome")
)
CPU = Family("process_cpu_seconds", "counter", "Processor time of the agent.", ())
RSS = Family("process_resident_memory_bytes", "gauge", "Resident memory of the agent.", ())
FDS = Family("process_open_fds", "gauge", "Open file descriptors of the agent.", ())
TASKS = Family("fractile_agent_tasks", "gauge", "Tasks of its event loop.", _NODE)
DROPPED = Family("fractile_metrics_dropped_series", "gauge", "Series left out of this page by its limit.", _NODE)

GM_BUSY = Family("container_gpu_utilization", "gauge", "gpu-manager: percent of a card.", (*_GPU_MANAGER, "gpu"))
GM_MEMORY = Family("container_gpu_memory_total", "gauge", "gpu-manager: MiB used.", (*_GPU_MANAGER, "gpu_memory"))
GM_REQUEST_CORES = Family(
    "container_request_gpu_utilization", "gauge", "gpu-manager: cards asked for.", (*_GPU_MANAGER, "req_of_gpu")
)
GM_REQUEST_MEMORY = Family(
    "container_request_gpu_memory", "gauge", "gpu-manager: MiB asked for.", (*_GPU_MANAGER, "req_of_gpu_memory")
)
