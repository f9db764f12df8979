"""``make load``: how fast pods are bound on a large cluster, with Fractile's extender and without any.

etcd, kube-apiserver and kube-scheduler are real; nodes, cards and running pods are objects only, put into etcd before
the API server starts. Every row of ``scenarios`` is played in turn, several times, in one run (docs/results/load.md).
"""
