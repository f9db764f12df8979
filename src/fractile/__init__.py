"""Fractile: many pods share GPUs on any Kubernetes cluster. The tree below follows the path of a pod."""

__version__ = "0.1.0"
