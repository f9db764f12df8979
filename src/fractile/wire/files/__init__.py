"""Read the files that users write: clusters, devices, quotas, scores, sharing rules."""
