"""Steps 5 and 6 of a pod's path, on its node: which container kubelet asks for, which card it gets, and how much.

    kubelet ── GetPreferredAllocation ─> deviceplugin   find the pod; its placement names the card; prefer its ids
            ── Allocate ───────────────> deviceplugin   ids -> environment and an empty token directory; never refuses
            ── PreStartContainer ──────> deviceplugin   ids -> owner, now unique; check all; limits writes the file

Before it: ``extender``, which wrote the placement. After it: the library in the container, which reads the limits file.

    node/           the state of the machine: processes, control groups, pods, the container runtime
    kubelet/        its sockets, its checkpoint, its pod-resources API
    devices/        cards: inventory, health, and the objects that publish both
    deviceplugin/   the answers above
    limits/         directories of containers: written, checked, rebuilt, removed
    usage/          once a second: regions, driver, arbiter; and the pages that show it
    audit/          use of cards that no placement covers, and what is done about it
    gpumanager/     images made for gpu-manager: ``/etc/vcuda``
"""
