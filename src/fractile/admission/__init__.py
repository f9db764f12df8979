"""Step 1 of a pod's path: the API server asks before it stores the pod. Before it: nothing. After it: kube-scheduler.

What happens here is a convenience and an early word. Whatever slips by, because this webhook was down, is judged again
by filter, bind and the node; only pods that cannot be served without it (those that name a class) are stopped by
somebody else, a policy of the API server itself (deploy/manifests).
"""
