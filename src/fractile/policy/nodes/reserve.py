"""CPU that is kept for GPUs in use, where pods come and go.

A full node with no CPU left looks no worse than a full one with some: nothing of its GPUs is left over. But pods leave,
and a GPU that comes back can only be given again to who asks for as little CPU as left with it. So a node with ``d``
thousandths of GPUs, in use or not, ``g`` of them left and ``c`` CPU left lacks

    lacking x lacking / wanted      wanted: twice the CPU that the mix asks for beside d
                                    lacking: what is missing of that when the mix took what is left of the GPUs

The square sends pods that ask for much CPU beside their GPUs, or for CPU alone, to nodes that have most over. It fades
out like ``stranding``, where CPU is short everywhere. Where pods stay, no GPU comes back, and that one is enough.
"""

import numpy as np

from fractile.policy.nodes.view import Ints

UNIT = 1_000_000


def reserved(cpu_left: Ints, gpu_left: Ints, gpus: Ints, wanted: int) -> Ints:
    """``gpu_left`` and ``gpus``: sums over a node's devices, in thousandths; ``wanted`` as in ``stranding.Beside``. In
    thousandths of a CPU."""
    needed = gpus * wanted // UNIT
    after = np.maximum(cpu_left, 0) - gpu_left * wanted // (2 * UNIT)
    lacking = np.maximum(needed - after, 0)
    return lacking * (UNIT * lacking // np.maximum(needed, 1)) // UNIT
