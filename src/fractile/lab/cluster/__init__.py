"""A local cluster: real Kubernetes programs on this machine, simulated cards, Fractile on top.

``up`` is the main flow. It uses ``lab.machine`` (what has to be on the machine, and what a node stands on), ``state``
(what is kept on disk), ``plan`` (all components, from ``controlplane`` and ``node``), ``component`` (start, find and
stop them) and ``objects`` (what the API must hold). ``down`` undoes all of it. Tests and demonstrations use
``local.LocalCluster``. Everything is level-triggered: ``up`` compares what runs with what should, and starts only the
difference.
"""
