"""Messages of kubelet's local gRPC APIs (device plugin v1beta1, pod-resources v1) and of gpu-manager's registration,
generated from the .proto files here.

The interfaces are defined by the Kubernetes authors and by those of gpu-manager (Apache License 2.0). Only messages are
generated: the services are a few names in ``agent/kubelet/rpc.py``, which avoids a generated file that pins the exact
gRPC version.
"""
