"""Steps 2-4 of the path: kube-scheduler asks which nodes fit (filter), which are best (score), and to bind (bind).

Before: kube-scheduler's own filters. After: kubelet and the agent. Filter and score change nothing; bind assumes in
the ledger and makes one API call.
"""
