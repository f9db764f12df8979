"""Wiring of the agent: what it knows of its node, what it answers to kubelet, and what it keeps up beside that.

    known (cards, pods, granted directories, kubelet) ──> kubelet_calls (while containers start)
                                                      ──> devices (health, objects in the API server)
                                                      ──> upkeep (limits of running containers, use, audit)

Each module builds one of these and is given those before it; ``main.agent`` runs them all.
"""
