"""All policies for nodes by name. A new one is a file and a line here."""

from fractile.policy.score import (
    bestfit,
    dot_product,
    fgd_paper,
    fgd_plus,
    first_fit,
    gpu_clustering,
    gpu_packing,
    random_fit,
)
from fractile.policy.score.allocation import policy, ratio
from fractile.policy.score.kubernetes import Rounding, least_allocated, most_allocated
from fractile.policy.score.policy import Policy

POLICIES: dict[str, Policy] = {
    "fgd-plus": fgd_plus.POLICY,
    "fgd-paper": fgd_paper.POLICY,
    "bestfit": bestfit.POLICY,
    "gpu-packing": gpu_packing.POLICY,
    "gpu-clustering": gpu_clustering.POLICY,
    "dot-product": dot_product.POLICY,
    "random": random_fit.POLICY,
    "first-fit": first_fit.POLICY,
    "most-allocated": policy(most_allocated, Rounding.NEW),
    "most-allocated-1.20": policy(most_allocated, Rounding.OLD),
    "least-allocated": policy(least_allocated, Rounding.NEW),
    "least-allocated-1.20": policy(least_allocated, Rounding.OLD),
    "requested-to-capacity-ratio": policy(ratio, Rounding.NEW),
    "requested-to-capacity-ratio-1.20": policy(ratio, Rounding.OLD),
}
DEFAULT = "fgd-plus"
