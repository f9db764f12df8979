"""HTTPS servers of the control plane: certificates, connections, limits of requests, and the caller's identity."""
