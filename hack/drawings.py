"""Draws the pictures of README and docs: ``make drawings``. Their contents are defined here; nothing is drawn by hand.

Each picture has its own background, so it is readable on light and dark pages.
"""

import html
from pathlib import Path

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"

INK, FAINT, PAPER, LINE = "#1b2733", "#5b6b7a", "#ffffff", "#c3ccd5"
COLOURS = {"classifier": "#3b7ddd", "notebook": "#e08a2e", "trainer": "#2f9e6e", "embedder": "#9a5fc9"}
FREE = "#eef1f4"
FONT = "font-family='DejaVu Sans, Verdana, sans-serif'"


class Picture:
    """Shapes on paper of ``width`` x ``height`` pixels."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size = width, height
        self._parts = [
            f"<rect width='{width}' height='{height}' rx='8' fill='{PAPER}'/>",
            f"<title>{html.escape(title)}</title>",
        ]

    def box(self, x: float, y: float, w: float, h: float, fill: str, edge: str = LINE) -> None:
        self._parts.append(f"<rect x='{x}' y='{y}' width='{w}' height='{h}' rx='5' fill='{fill}' stroke='{edge}'/>")

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: int = 13,
        colour: str = INK,
        bold: bool = False,
        at: str = "start",
    ) -> None:
        weight = " font-weight='bold'" if bold else ""
        self._parts.append(
            f"<text x='{x}' y='{y}' {FONT} font-size='{size}' fill='{colour}' text-anchor='{at}'{weight}>"
            f"{html.escape(words)}</text>"
        )

    def arrow(self, *points: tuple[float, float]) -> None:
        path = " ".join(f"{x},{y}" for x, y in points)
        self._parts.append(
            f"<polyline points='{path}' fill='none' stroke='{FAINT}' stroke-width='1.6' marker-end='url(#head)'/>"
        )

    def svg(self) -> str:
        w, h = self._size
        head = (
            "<defs><marker id='head' viewBox='0 0 10 10' refX='9' refY='5' markerWidth='7' markerHeight='7' "
            "orient='auto'>"
            f"<path d='M0,0 L10,5 L0,10 z' fill='{FAINT}'/></marker></defs>"
        )
        body = "\n".join(self._parts)
        size = f"width='{w}' height='{h}' viewBox='0 0 {w} {h}'"
        return f"<svg xmlns='http://www.w3.org/2000/svg' {size}>\n{head}\n{body}\n</svg>\n"


def cards() -> Picture:
    """Two nodes, their cards, and the slices of them that pods hold."""
    picture = Picture(840, 250, "Cards of two nodes, and the slices that pods hold of them")
    layout = {
        "node-1": [
            [("classifier", 25, "4069 MiB"), ("notebook", 25, "4069 MiB, 20 %"), ("embedder", 37, "6000 MiB")],
            [("classifier", 50, "8138 MiB"), ("notebook", 30, "4883 MiB, 30 %")],
        ],
        "node-2": [
            [("trainer", 100, "a whole card")],
            [("trainer", 100, "a whole card")],
        ],
    }
    for column, (node, held) in enumerate(layout.items()):
        left = 20 + column * 410
        picture.box(left, 20, 390, 176, "#f8fafb")
        picture.text(left + 12, 42, node, bold=True)
        for row, slices in enumerate(held):
            top = 54 + row * 70
            picture.text(left + 12, top + 14, f"card {row}", size=11, colour=FAINT)
            picture.box(left + 58, top, 320, 52, FREE)
            at = left + 58.0
            for pod, percent, asked in slices:
                width = 320 * percent / 100
                picture.box(at, top, width, 52, COLOURS[pod], PAPER)
                picture.text(at + 7, top + 21, pod, size=11, colour=PAPER, bold=True)
                picture.text(at + 7, top + 38, asked if width > 90 else asked.split(",")[0], size=9, colour=PAPER)
                at += width
            if at < left + 58 + 300:
                picture.text(at + 7, top + 30, "free", size=10, colour=FAINT)
    picture.text(
        20,
        222,
        "Each colour is a pod. A slice is memory that it cannot exceed, and a share of the card's time if it asked.",
        size=12,
        colour=FAINT,
    )
    picture.text(20, 240, "Pods that ask for whole cards get cards on which nobody else is.", size=12, colour=FAINT)
    return picture


def path_of_a_pod() -> Picture:
    """The path from kubectl to the container: the calls between the programs, in their order."""
    picture = Picture(840, 330, "The path of a pod: kube-scheduler, control plane, kubelet, agent, container")
    stations = [
        (20, 20, 190, 44, "kubectl apply", "a pod with aliyun.com/gpu-mem"),
        (20, 110, 190, 44, "kube-scheduler", "stock, unchanged"),
        (20, 200, 190, 44, "kubelet", "stock, unchanged"),
        (20, 276, 190, 44, "container", "the library keeps it to its limits"),
    ]
    for x, y, w, h, name, what in stations:
        picture.box(x, y, w, h, "#f8fafb")
        picture.text(x + 12, y + 19, name, bold=True)
        picture.text(x + 12, y + 35, what, size=10, colour=FAINT)
    for top, bottom in ((64, 110), (154, 200), (244, 276)):
        picture.arrow((115, top), (115, bottom))
    steps = [
        (
            "fractile control-plane",
            82,
            [
                ("filter", "which nodes have a card with room, and why the others have not"),
                ("prioritize", "which of them wastes least"),
                ("bind", "which cards; one write: the pod's node and its placement"),
            ],
        ),
        (
            "fractile agent, one per node",
            190,
            [
                ("allocate", "devices, library and variables of the container"),
                ("prestart", "placement, kubelet's record and limits agree; the limits are written"),
            ],
        ),
    ]
    for name, top, lines in steps:
        height = 30 + 20 * len(lines)
        picture.box(300, top, 520, height, "#eaf2fc", "#9cbde8")
        picture.text(314, top + 19, name, bold=True)
        for row, (verb, what) in enumerate(lines):
            picture.text(314, top + 40 + 20 * row, verb, size=11, bold=True, colour="#22538f")
            picture.text(390, top + 40 + 20 * row, what, size=11)
    picture.text(222, 124, "HTTPS", size=10, colour=FAINT)
    picture.arrow((210, 132), (300, 132))
    picture.text(222, 214, "gRPC", size=10, colour=FAINT)
    picture.arrow((210, 222), (300, 222))
    picture.text(
        314,
        292,
        "ledger: what is free on which card, kept by watching pods and cards; rebuilt from the",
        size=11,
        colour=FAINT,
    )
    picture.text(
        314, 308, "annotations of the pods at each start, so nothing is lost with a process", size=11, colour=FAINT
    )
    return picture


# The modules that a call passes, in their order: module, function, what it does. A test follows the calls.
FILTER = (
    ("extender/app", "Extender.filter", "a body comes in, an answer goes out"),
    ("wire/kubernetes/extender", "decode_args", "pod and names of nodes"),
    ("dialects/table", "parse_pod", "what each container asks for"),
    ("ledger/classes", "resolve", "which cards a class stands for now"),
    ("extender/policies", "NodePolicies.asking", "which policy compares nodes for this pod"),
    ("extender/filter", "filter_nodes", "the step itself"),
    ("ledger/usage", "LedgerUsage.allowance", "what the quota leaves to the namespace"),
    ("policy/cards/kinds", "parts", "the request by kind of device"),
    ("ledger/scan", "now", "all nodes at once, by arrays"),
    ("policy/cards/choice", "fits", "one node exactly, where sums do not decide"),
    ("policy/cards/reasons", "explain", "why a node does not fit, in numbers"),
    ("extender/naming", "Naming.concerns", "how many of the best are named"),
)
BIND = (
    ("extender/app", "Extender.bind", "a body comes in, an answer goes out"),
    ("extender/bind", "Binder.bind", "the four steps"),
    ("watch/waiting_pods", "WaitingPods.find", "what the pod asks for, as seen in the watch"),
    ("ledger/usage", "LedgerUsage.allowance", "what the quota leaves to the namespace"),
    ("policy/quota", "plan_within", "a plan within that"),
    ("policy/cards/plan", "plan", "the cards of all containers, or a refusal"),
    ("policy/cards/choice", "choose", "the only place where cards are chosen"),
    ("ledger/ledger", "Ledger.assume", "charged, before anything is written"),
    ("dialects/table", "placement_annotations", "annotations of the pod's family"),
    ("wire/fractile/placement", "encode", "the placement, as an annotation"),
    ("kube/client", "KubeClient.bind", "the one write"),
    ("watch/event_handlers", "PodHandlers.written", "the hold is confirmed"),
)


def path_of_a_call() -> Picture:
    """The modules that filter and bind pass."""
    row, top, width = 44, 62, 460
    height = top + row * max(len(FILTER), len(BIND)) + 10
    picture = Picture(2 * width + 20, height, "The modules that a call of filter and a call of bind pass")
    for column, (verb, steps) in enumerate((("filter", FILTER), ("bind", BIND))):
        left = 20 + column * width
        picture.text(left, 32, verb, size=16, bold=True, colour="#22538f")
        picture.text(left + 60, 32, f"{len(steps)} modules", size=11, colour=FAINT)
        for n, (module, function, what) in enumerate(steps):
            y = top + n * row
            picture.box(left, y - 14, width - 30, 34, "#f8fafb")
            picture.text(left + 10, y, module, size=12, bold=True)
            picture.text(left + 210, y, function, size=11, colour="#22538f")
            picture.text(left + 10, y + 14, what, size=10, colour=FAINT)
            if n + 1 < len(steps):
                picture.arrow((left + 14, y + 20), (left + 14, y + row - 14))
    return picture


DRAWINGS = {"cards.svg": cards, "path-of-a-pod.svg": path_of_a_pod, "path-of-a-call.svg": path_of_a_call}


def main() -> None:
    """Write every picture."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name, draw in DRAWINGS.items():
        (PICTURES / name).write_text(draw().svg())


if __name__ == "__main__":
    main()
