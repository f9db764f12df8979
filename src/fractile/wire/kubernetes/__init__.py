"""Objects and messages of Kubernetes, as far as Fractile reads and writes them."""
