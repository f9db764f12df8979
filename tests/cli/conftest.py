"""Fixtures of tests that read a cluster at the wire."""

from tests.reports.shown_cluster import cluster, server

__all__ = ["cluster", "server"]
