"""Steps 5 and 6 of a pod's path, on its node: which container does kubelet ask for, which card, how much of it.

    kubelet ── GetPreferredAllocation ─> steer      who asks? its placement names the card; prefer that card's ids
            ── Allocate ───────────────> allocate   ids -> environment and an empty token directory; never fails in vain
            ── PreStartContainer ──────> prestart   ids -> owner, now unique; check everything; write the limits file

Before it: ``extender``, which wrote the placement. After it: the library in the container, which reads the limits file.
``inventory`` and ``register`` tell the API server and kubelet what the node has; ``journal`` is all that is on disk.
Beside it all, once a second: ``usage`` looks at regions, driver and arbiter, ``audit`` acts on what no ledger covers,
and ``pages`` shows both.
For images made for gpu-manager ``virtual_manager`` keeps ``/etc/vcuda``; its parts are called ``vcuda_*``.
"""
