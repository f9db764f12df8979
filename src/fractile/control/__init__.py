"""Reconcilers of the control plane: level-triggered loops between what the API shows and what the ledger holds.

``feed`` keeps the ledger in step with pods and cards; ``doubt`` resolves Bindings of unknown outcome; ``repair``
follows kubelet to another card; ``wakeup`` makes kube-scheduler retry a waiting pod when room appears.
"""
