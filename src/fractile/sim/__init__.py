"""Recorded or planned workloads on a cluster that exists in arrays only: the policies of ``policy.score``, one run
after another, with numbers at the end. Imported by ``fractile simulate`` alone; no server, no clock, no network.
"""
