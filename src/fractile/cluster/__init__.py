"""A local cluster: real Kubernetes programs on this machine, simulated cards, Fractile on top.

`up.py` is the main flow; it uses `programs` (where the binaries come from), `layout` and `state` (what is kept on disk),
`components` (the command line of every process), `processes` (start, find and stop them) and `node*` (one mount
namespace per node). `down.py` undoes all of it. `local.LocalCluster` is the door for tests and demos.
Everything is level-triggered: `up` compares what runs with what should, and starts only the difference.
"""
