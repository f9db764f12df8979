"""Which cards of one node a pod gets, as kubelet needs them; and why not, in words."""
