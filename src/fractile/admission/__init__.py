"""Step 1 of a pod's path: the API server calls this webhook before it stores the pod. Next step: kube-scheduler.

This step is a convenience and an early answer. Pods that it misses because the webhook was down are checked again by
filter, bind and the node. Only pods that cannot be served without it (those that name a class) are rejected meanwhile,
by a policy of the API server itself (deploy/manifests).
"""
