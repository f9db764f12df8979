"""Makes the packages of the new tree, with what each says of itself, and moves the folders of data."""

import subprocess, pathlib, shutil, os
R=pathlib.Path.cwd()
def git(*a): subprocess.run(['git',*a],check=True)
docs={
'agent':'''"""Steps 5 and 6 of a pod's path, on its node: which container does kubelet ask for, which card, how much of it.

    kubelet ── GetPreferredAllocation ─> deviceplugin   who asks? its placement names the card; prefer that card's ids
            ── Allocate ───────────────> deviceplugin   ids -> environment and an empty token directory; never refuses
            ── PreStartContainer ──────> deviceplugin   ids -> owner, now unique; check everything; limits writes the file

Before it: ``extender``, which wrote the placement. After it: the library in the container, which reads the limits file.

    node/           what the machine says: processes, control groups, pods, the container runtime
    kubelet/        its sockets, its checkpoint, its pod-resources API
    devices/        cards: what there is, whether it is healthy, and the objects that say so
    deviceplugin/   the answers above
    limits/         directories of containers: written, checked, made again, removed
    usage/          once a second: regions, driver, arbiter; and the pages that show it
    audit/          use of cards that no placement covers, and what is done about it
    gpumanager/     images made for gpu-manager: ``/etc/vcuda``
"""''',
'agent/kubelet/api':None,
'agent/audit':'"""Use of cards that no placement covers: found, told, and ended as ``--outside-ledger`` says."""',
'agent/deviceplugin':'"""kubelet\'s device plugin API: registration, lists of devices, and the answers to its three questions."""',
'agent/devices':'"""The cards of this node: what there is, whether it is healthy, and the objects at the API server that say so."""',
'agent/gpumanager':'"""What images made for gpu-manager expect on their node: ``/etc/vcuda`` and its registration service."""',
'agent/kubelet':'"""What kubelet knows: the identity of a container, its checkpoint of devices, its pod-resources API."""',
'agent/limits':'"""The directory of each container: its limits file and region, written at its start and removed after its end."""',
'agent/node':'"""What the machine itself says: processes, control groups, mounts, the container runtime, the pods of this node."""',
'agent/usage':'"""What runs on the cards: a look at regions, driver and arbiter once a second, and the pages that show it."""',
'classes':'"""Controllers of ``ResourceClass`` objects: names, capacity, counts, status and defaults of each class."""',
'cli/options':'"""Options and arguments that several commands take, with their completion."""',
'cli/text':'"""What the commands print: tables, trees and sentences made from the reports."""',
'debug':'"""What the control plane shows of itself: pages of its state, figures, and the steps of a trace."""',
'globalplacement':'"""Placement over all nodes: the control plane chooses the node of a waiting pod and nominates it."""',
'kubeadm':'"""Edits kube-scheduler\'s static pod on a control-plane node so that it asks Fractile (``fractile install-scheduler``)."""',
'lab':'"""Local clusters, simulated nodes and image building: nothing that production programs import."""',
'lab/cluster':'''"""A local cluster: real Kubernetes programs on this machine, simulated cards, Fractile on top.

``up`` is the main flow. It uses ``lab.machine`` (what has to be on the machine, and what a node stands on), ``state``
(what is kept on disk), ``plan`` (all components, from ``controlplane`` and ``node``), ``component`` (start, find and
stop them) and ``objects`` (what the API must hold). ``down`` undoes all of it. Tests and demonstrations use
``local.LocalCluster``. Everything is level-triggered: ``up`` compares what runs with what should, and starts only the
difference.
"""''',
'lab/demos':'"""The demonstrations of ``fractile demo``, and the pods that they run."""',
'lab/hollow':'"""Nodes without machines: a kubelet that runs no containers, with the devices of a real node."""',
'lab/image':'"""Builds the container image from Debian packages and the wheel, with its bill of materials."""',
'lab/machine':'"""What a local cluster needs of its machine: programs, packages, mounts, networks, control groups, images."""',
'lab/programs':'"""One wiring file for each program that only local clusters run."""',
'policy/cards':'"""Which cards of one node a pod gets, as kubelet needs them; and why not, in words."""',
'policy/nodes':'''"""Which node, and which of its GPUs: scores as functions of arrays of nodes.

A request and the nodes are in thousandths: of a CPU, of a GPU. All arithmetic is in integers, so that equal inputs give
equal choices on every machine; the best score wins, and among equals the node that stands first. ``policy.cards``
chooses cards of one node as kubelet needs them; this package compares nodes of whole clusters.
"""''',
'policy/nodes/policies':'"""The policies, one file each, in one table (``table``)."""',
'reconcile':'''"""Loops of the control plane that compare what the API shows with what the ledger holds, and act on the difference.

``assumed_pods`` resolves Bindings of unknown outcome; ``repair`` follows kubelet to another card; ``requeue`` makes
kube-scheduler retry a waiting pod when room appears; ``ledger_audit`` compares the ledger with the API server.
"""''',
'reports':'"""What the commands show, one module for each: read from the API server, put together, independent of its form."""',
'reports/why':'"""Why a pod waits, or what became of it (``fractile why``): read, judged, put in order."""',
'serving':'"""HTTPS servers of the control plane: certificates, connections, bounds of requests, and who the caller is."""',
'sim/planner':'"""What fits, what would fit, and which moves help (``fractile plan``)."""',
'sim/report':'"""The folder that ``fractile simulate`` writes: tables, plots and a page."""',
'sim/snapshot':'"""A cluster as arrays: from recorded traces, from YAML files, or read from the API server."""',
'watch':'"""Event handlers of the control plane: each keeps the ledger, or what is known beside it, in step with the API."""',
'wire/files':'"""Files that users write: clusters, devices, quotas, scores, sharing rules."""',
'wire/foreign':'"""Formats of other programs: gpu-manager, kubeadm, kubelet\'s checkpoint, container runtimes, kernel logs."""',
'wire/fractile':'"""Fractile\'s own objects and annotations at the API server."""',
'wire/kubernetes':'"""Objects and messages of Kubernetes, as far as Fractile reads and writes them."""',
'wire/output':'"""What commands print with ``-o json``, and what the agents\' pages say."""',
}
for a,b in (('src/fractile/cluster/manifests','src/fractile/lab/cluster/manifests'),('src/fractile/cluster/kubernetes','src/fractile/lab/machine/kubernetes'),
            ):
    if (R/a).exists(): (R/b).parent.mkdir(parents=True,exist_ok=True); git('mv',a,b)
for f in list((R/'src/fractile/agent/api').iterdir()) if (R/'src/fractile/agent/api').exists() else []:
    if f.name!='__pycache__': git('mv',str(f),str(R/'src/fractile/agent/kubelet/api'/f.name))
for old in ('cluster','control','policy/score'):
    p=R/'src/fractile'/old/'__init__.py'
    if p.exists(): git('rm','-qf',str(p))
for k,v in docs.items():
    if v: (R/'src/fractile'/k/'__init__.py').write_text(v+'\n')
for d in list((R/'tests').rglob('*')):
    if d.is_dir() and d.name!='__pycache__' and any(d.glob('*.py')) and not (d/'__init__.py').exists(): (d/'__init__.py').write_text('')
for old in ('tests/cluster','tests/control','tests/policy/score'):
    p=R/old
    if p.exists() and [x.name for x in p.glob('*.py')]==['__init__.py']: git('rm','-qf',old+'/__init__.py'); shutil.rmtree(p,ignore_errors=True)
for old in ('cluster','control','policy/score','agent/api'):
    p=R/'src/fractile'/old
    if p.exists(): shutil.rmtree(p)
l=R/'deploy/manifests'
l.unlink(); l.symlink_to('../src/fractile/lab/cluster/manifests')
