"""A local cluster: real Kubernetes programs on this machine, simulated cards, Fractile on top.

`up.py` is the main flow. It uses `programs` and `packages` (what has to be on the machine), `layout` and `state` (what
is kept on disk), `plan` (all components, from `controlplane` and `node`), `component` and `processes` (start, find and
stop them), `mounts`, `network`, `cgroups` and `images` (what a node stands on) and `objects` (what the API must hold).
`down.py` undoes all of it. `local.LocalCluster` is the door for tests and demonstrations.
Everything is level-triggered: `up` compares what runs with what should, and starts only the difference.
"""
