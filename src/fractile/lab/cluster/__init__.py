"""A local cluster: real Kubernetes programs on this machine, simulated cards, Fractile on top.

``up`` is the main flow. It uses ``lab.machine`` (what the machine must have, and the parts of a node), ``state`` (what
is kept on disk), ``plan`` (all components, from ``controlplane`` and ``node``), ``component`` (starts, finds and stops
them) and ``objects`` (what the API must hold). ``down`` undoes all of it. Tests and demonstrations use
``local.LocalCluster``. Everything is level-triggered: ``up`` compares what runs with what should run, and starts only
what is missing.
"""
