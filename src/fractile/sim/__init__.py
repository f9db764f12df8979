"""Recorded or planned workloads on a cluster that exists in arrays only: the policies of ``policy.score``, one run
after another, with numbers at the end (``fractile simulate``); what fits, and what would (``fractile plan``). Imported
by these commands alone; no server, no clock, no network.
"""
