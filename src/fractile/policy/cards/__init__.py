"""Choose the cards of one node that a pod gets, as kubelet needs them; or explain in words why it gets none."""
