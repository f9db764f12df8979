"""Prometheus metrics of the programs: names, help texts and the text format. No I/O: each program serves its own page.

docs/reference/metrics.md lists every name.
"""
