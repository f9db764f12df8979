"""Loops of the control plane that compare what the API shows with what the ledger holds, and act on the difference.

``assumed_pods`` resolves Bindings of unknown outcome; ``repair`` follows kubelet to another card; ``requeue`` makes
kube-scheduler retry a waiting pod when room appears; ``ledger_audit`` compares the ledger with the API server.
"""
