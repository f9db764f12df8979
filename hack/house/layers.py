
p='pyproject.toml'
s=open(p).read()
a=s.index('layers = ['); b=s.index(']',a)
s=s[:a]+'''layers = [
    "fractile.cli",
    "fractile.lab",
    "fractile.main",
    "fractile.serving",
    "fractile.kubeadm",
    "fractile.reports",
    "fractile.sim",
    "fractile.extender | fractile.agent | fractile.admission",
    "fractile.globalplacement",
    "fractile.debug",
    "fractile.classes",
    "fractile.reconcile",
    "fractile.watch",
    "fractile.kube | fractile.nvml | fractile.region | fractile.door",
    "fractile.ledger",
    "fractile.policy",
    "fractile.dialects",
    "fractile.metrics",
    "fractile.wire",
    "fractile.model",
'''+s[b:]
open(p,'w').write(s)
