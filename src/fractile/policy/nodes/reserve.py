"""Reserve CPU for the GPUs in use, where pods come and go.

A full node without CPU left scores no worse than a full one with some, since neither has GPUs left. But pods leave, and
a released GPU can then only serve a pod that asks for as little CPU as was released with it. So a node with ``d``
thousandths of GPUs, in use or not, ``g`` of them left and ``c`` CPU left lacks

    lacking x lacking / wanted      wanted: twice the CPU that the mix requests with d
                                    lacking: what is missing of that once the mix has taken what is left of the GPUs

The square sends pods that request much CPU with their GPUs, or CPU alone, to the nodes with most CPU to spare. Like
``stranding`` it fades out where CPU is short everywhere. Where pods stay, no GPU is released, and ``stranding`` is
enough.
"""

import numpy as np

from fractile.policy.nodes.view import Ints

UNIT = 1_000_000


def reserved(cpu_left: Ints, gpu_left: Ints, gpus: Ints, wanted: int) -> Ints:
    """The lacking CPU of each node, in thousandths of a CPU. ``gpu_left`` and ``gpus``: sums over a node's devices, in
    thousandths; ``wanted`` as in ``stranding.Beside``."""
    needed = gpus * wanted // UNIT
    after = np.maximum(cpu_left, 0) - gpu_left * wanted // (2 * UNIT)
    lacking = np.maximum(needed - after, 0)
    return lacking * (UNIT * lacking // np.maximum(needed, 1)) // UNIT
