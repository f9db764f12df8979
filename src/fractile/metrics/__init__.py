"""What programs tell Prometheus: names, meanings and the text. No I/O; who has the figures serves them.

Read by ``agent``, which answers ``/metrics`` with them. docs/reference/metrics.md lists every name.
"""
