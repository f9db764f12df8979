"""What ``fractile scheduler-config`` prints, held against the real kube-scheduler of each version.

``make test-long`` runs this with the version that local clusters use; ``make test-versions`` builds the others and runs
all.
"""
