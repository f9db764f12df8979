"""Fractile lets many pods share GPUs on any Kubernetes cluster. The packages below follow the path of a pod."""

__version__ = "0.1.0"
