"""Admission policies and rights, tried as an attacker on a real API server."""
