"""Steps 5 and 6 of a pod's path, on its node: which container does kubelet ask for, which card, how much of it.

    kubelet ── GetPreferredAllocation ─> deviceplugin   who asks? its placement names the card; prefer that card's ids
            ── Allocate ───────────────> deviceplugin   ids -> environment and an empty token directory; never refuses
            ── PreStartContainer ──────> deviceplugin   ids -> owner, now unique; check all; limits writes the file

Before it: ``extender``, which wrote the placement. After it: the library in the container, which reads the limits file.

    node/           what the machine says: processes, control groups, pods, the container runtime
    kubelet/        its sockets, its checkpoint, its pod-resources API
    devices/        cards: what there is, whether it is healthy, and the objects that say so
    deviceplugin/   the answers above
    limits/         directories of containers: written, checked, made again, removed
    usage/          once a second: regions, driver, arbiter; and the pages that show it
    audit/          use of cards that no placement covers, and what is done about it
    gpumanager/     images made for gpu-manager: ``/etc/vcuda``
"""
