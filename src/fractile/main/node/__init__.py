"""Wiring of the agent: what it knows about its node, its answers to kubelet, and its background work.

    known (cards, pods, granted directories, kubelet) ──> kubelet_calls (while containers start)
                                                      ──> devices (health, objects in the API server)
                                                      ──> upkeep (limits of running containers, use, audit)

Each module builds one of these from the ones before it; ``main.agent`` runs them all.
"""
