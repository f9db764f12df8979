import os,subprocess,re
def rd(p): return open(p).read()
def wr(p,s): open(p,'w').write(s)
def sub(p,a,b,n=1):
    s=rd(p)
    if a not in s: print('missing',p,a[:70]); return
    wr(p,s.replace(a,b,n))
for p in ('hack/chart.py','hack/workloads.py','tests/lab/cluster/test_manifests.py'):
    sub(p,'"src" / "fractile" / "cluster" / "manifests"','"src" / "fractile" / "lab" / "cluster" / "manifests"')
sub('hack/workloads.py','tests/cluster checks','tests/lab checks')
p='tests/packaging/test_events.py'
sub(p,'missed. ``cluster`` is left out: there','missed. ``lab`` is left out: there')
sub(p,'and "cluster" not in f.relative_to(SOURCE).parts','and "lab" not in f.relative_to(SOURCE).parts')
sub(p,'''WRITERS = {"agent": "agent", "control": "control plane", "extender": "control plane", "admission": "control plane"}
''','''CONTROL_PLANE = ("admission", "classes", "debug", "extender", "globalplacement", "reconcile", "serving", "watch")
WRITERS = {"agent": "agent"} | dict.fromkeys(CONTROL_PLANE, "control plane")
''')
p='tests/packaging/test_log_lines.py'
sub(p,'''PROGRAMS = {"control plane": ("extender", "control", "kube", "main"), "agent": ("agent", "main", "kube")}
''','''CONTROL_PLANE = ("classes", "debug", "extender", "globalplacement", "reconcile", "serving", "watch")
PROGRAMS = {"control plane": (*CONTROL_PLANE, "kube", "main"), "agent": ("agent", "main", "kube")}
''')
# what tests of commands and of reports share
def git(*a): subprocess.run(['git',*a],check=True)
moves={'tests/cli/objects.py':'tests/reports/objects.py','tests/cli/class_cluster.py':'tests/reports/class_cluster.py','tests/cli/why_cluster.py':'tests/reports/why/why_cluster.py'}
for a,b in moves.items():
    if os.path.exists(a): git('mv',a,b)
s=rd('tests/cli/conftest.py')
wr('tests/reports/shown_cluster.py',s)
both='''"""Fixtures of tests that read a cluster at the wire."""

from tests.reports.shown_cluster import cluster, server

__all__ = ["cluster", "server"]
'''
wr('tests/cli/conftest.py',both); wr('tests/reports/conftest.py',both)
names={a[:-3].replace('/','.'):b[:-3].replace('/','.') for a,b in moves.items()}
names['tests.cli.conftest']='tests.reports.shown_cluster'
for f in subprocess.run(['git','ls-files','tests','hack'],capture_output=True,text=True).stdout.split()+['tests/reports/shown_cluster.py']:
    if not f.endswith('.py') or not os.path.exists(f): continue
    t=rd(f); n=t
    for a,b in names.items(): n=re.sub(r'\b'+re.escape(a)+r'\b',b,n)
    n=re.sub(r'from tests\.cli import ([^\n]*)',lambda m: '\n'.join(f"from {'tests.reports.why' if x.strip()=='why_cluster' else 'tests.reports' if x.strip() in('objects','class_cluster') else 'tests.cli'} import {x.strip()}" for x in m[1].split(',')),n)
    if n!=t: wr(f,n)
sub('tests/packaging/test_events.py','SOURCE / "control" / "made.py"','SOURCE / "watch" / "made.py"')
