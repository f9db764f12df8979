import os
def sub(p,a,b):
    s=open(p).read()
    if a not in s: print('missing',p,a[:60]); return
    open(p,'w').write(s.replace(a,b,1))
sub('src/fractile/agent/__init__.py','ids -> owner, now unique; check everything; limits writes the file','ids -> owner, now unique; check all; limits writes the file')
sub('src/fractile/kubeadm/__init__.py','so that it asks Fractile (``fractile install-scheduler``)."""','(``fractile install-scheduler``)."""')
sub('hack/chart.py','''"""Writes charts/fractile/templates/objects from src/fractile/lab/cluster/manifests, which stays the only source of rights,
policies''','''"""Writes charts/fractile/templates/objects from src/fractile/lab/cluster/manifests, which stays the only source of
rights, policies''')
sub('hack/workloads.py','''"""Writes src/fractile/lab/cluster/manifests/37-workloads.yaml: the policies of pods, asked of the templates of workloads.
''','''"""Writes 37-workloads.yaml of src/fractile/lab/cluster/manifests: the policies of pods, asked of templates of workloads.
''')
sub('tests/serving/siege.py','''"""Clients that hurt a listener, as a process of its own: ``python -m tests.serving.siege PORT SLOW BODIES PATH HOST...``.
''','''"""Clients that hurt a listener, as a process of its own.

Run as ``python -m tests.serving.siege PORT SLOW BODIES PATH HOST...``.
''')
sub('hack/workloads.py','"""Writes 37-workloads.yaml of src/fractile/lab/cluster/manifests: the policies of pods, asked of templates of workloads.','"""Writes 37-workloads.yaml of src/fractile/lab/cluster/manifests: the policies of pods, for templates of workloads.')
sub('tests/reports/why/test_leader.py','from fractile import cluster\n','from fractile.lab import cluster\n')

import subprocess,re
for row in subprocess.run(['git','diff','--cached','-M20%','--name-status','HEAD'],capture_output=True,text=True).stdout.splitlines():
    f=row.split('\t')
    if not f[0].startswith('R') or not f[2].endswith('.py'): continue
    d=f[2].count('/')-f[1].count('/')
    if not d: continue
    t=open(f[2]).read(); n=re.sub(r'Path\(__file__\)\.parents\[(\d+)\]',lambda m:f'Path(__file__).parents[{int(m[1])+d}]',t)
    if d>0: n=n.replace('Path(__file__).parent / "golden"',f'Path(__file__).parents[{d}] / "golden"')
    if n!=t: open(f[2],'w').write(n); print(f[2],d)
sub('tests/agent/kubelet/test_api.py','Path(rpc.__file__).parents[2]','Path(rpc.__file__).parents[3]')
