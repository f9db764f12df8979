"""``make soak MINUTES=60``: pods of all families come and go at a steady rate on a real local cluster, for long, while
memory, threads, descriptors and tasks of Fractile's programs are written down. What rises is a leak. See
docs/results/soak.md.

    churn, samples, verdict, plot     pure: which pods and for how long, what was seen, what it means, a picture
    eyes, world, run                  reads the programs; the cluster with two replicas; the churn and the looks at it
"""
