"""Recorded or planned workloads on a cluster that exists in arrays only. ``fractile simulate`` runs the policies of
``policy.nodes`` one after another and reports figures; ``fractile plan`` says what fits and what would. Only these
commands import this package; it uses no server, clock or network.
"""
