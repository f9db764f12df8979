import os,re,subprocess
def rd(p): return open(p).read()
def wr(p,s): open(p,'w').write(s)
# 1 CNI folders
p='src/fractile/lab/cluster/node.py'; s=rd(p)
line=re.search(r'^CNI_FOLDERS = .*\n',s,re.M)[0]; s=s.replace(line,'')
s=s.replace('for f in CNI_FOLDERS if','for f in packages.CNI_FOLDERS if'); wr(p,s)
print(re.findall(r'^.*lab.*import.*$',s,re.M))
s2=rd('src/fractile/lab/machine/packages.py').replace('from fractile.lab.cluster.node import CNI_FOLDERS\n','')
s2=s2.replace('SYSTEM_PATH = ',line+'SYSTEM_PATH = ',1); wr('src/fractile/lab/machine/packages.py',s2)
if 'packages' not in ' '.join(re.findall(r'^from.*$',s,re.M)):
    s=s.replace('from fractile.lab.machine import ','from fractile.lab.machine import packages, ',1); wr(p,s)
# 2 dialects.agents
p='src/fractile/reports/inspect.py'; s=rd(p)
a=s.index('def memory_unit('); b=s.index('def _cards(resources'); mu=s[a:b]; s=s[:a]+s[b:]
a=s.index('def served('); b=s.index('def _feed('); sv=s[a:b]; s=s[:a]+s[b:]
s=s.replace('from fractile.dialects import aliyun, table\n','from fractile.dialects.agents import memory_unit, served\n')
wr(p,s)
wr('src/fractile/dialects/agents.py','''"""What the objects of a cluster's agents say about options that all agents and the control plane share.

The control plane is told its options; commands and reports, which only read the API server, work them out here.
"""

from collections.abc import Iterable

from fractile.dialects import aliyun, table
from fractile.errors import WireError
from fractile.model.card import Card
from fractile.model.units import MemoryUnit, NodeName
from fractile.wire import quantity
from fractile.wire.fractile import extended_resource
from fractile.wire.fractile.extended_resource import ExtendedResource
from fractile.wire.kubernetes.objects import Node


'''+mu+sv.rstrip()+'\n')
for f in subprocess.run(['grep','-rl','from fractile.reports.inspect import','src','tests'],capture_output=True,text=True).stdout.split():
    s=rd(f)
    m=re.search(r'from fractile\.reports\.inspect import (.*)\n',s)
    names=[n.strip() for n in m[1].split(',')]
    mine=[n for n in names if n in('memory_unit','served')]; rest=[n for n in names if n not in mine]
    if mine:
        new=f"from fractile.dialects.agents import {', '.join(mine)}\n"+(f"from fractile.reports.inspect import {', '.join(rest)}\n" if rest else '')
        s=s.replace(m[0],new); wr(f,s)
# 3 reading
s=rd('src/fractile/reports/reading.py')
a=s.index('def cluster_options'); b=s.index('async def read('); top=s[a:b]
c=s.index('# ── completion'); comp=s[c:]; mid=s[b:c].rstrip()+'\n'
comp=comp.split('\n',3)[3] if comp.startswith('# ──') else comp
comp=s[c:]; comp=comp[comp.index('async def _classes'):]
wr('src/fractile/cli/options/api_server.py','''"""How commands that only read the API server find it: their options, and names for completion."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TypeVar

import click
from click.shell_completion import CompletionItem

from fractile.cli.options import cluster_name
from fractile.cli.options.target import find_kubeconfig
from fractile.errors import FractileError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.credentials import Credentials, load
from fractile.lab.layout import default_clusters_dir
from fractile.wire.fractile.extended_resource import ExtendedResource
from fractile.wire.fractile.resource_class import ResourceClass
from fractile.wire.kubernetes.objects import Namespace, Node, Pod

_COMPLETION_SECONDS = 1.5  # a person waits for the prompt

F = TypeVar("F", bound=Callable[..., object])
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


'''+top+'# ── completion '+'─'*102+'\n\n\n'+comp)
wr('src/fractile/reports/reading.py','''"""How reports read objects of the API server, and what is said when that fails."""

from collections.abc import Iterable
from typing import TypeVar

from fractile.errors import ApiError, SetupError, Unreachable
from fractile.kube.client import KubeClient
from fractile.wire.fractile.extended_resource import GROUP

_NAMED = 20  # names in a sentence

T = TypeVar("T")


'''+mid)
OPT={'cluster_options','credentials','complete_class','complete_node','complete_any_node','complete_namespace','complete_pod','complete_type'}
for f in subprocess.run(['grep','-rlE','reports.reading|reports import .*reading','src','tests'],capture_output=True,text=True).stdout.split():
    if f.endswith('api_server.py'): continue
    s=rd(f)
    m=re.search(r'from fractile\.reports\.reading import (\([^)]*\)|[^\n]*)\n',s)
    if m:
        names=[n.strip() for n in m[1].strip('()').replace('\n',' ').split(',') if n.strip()]
        mine=[n for n in names if n in OPT]; rest=[n for n in names if n not in OPT]
        new=(f"from fractile.cli.options.api_server import {', '.join(mine)}\n" if mine else '')+(f"from fractile.reports.reading import {', '.join(rest)}\n" if rest else '')
        s=s.replace(m[0],new)
    used=set(re.findall(r'\breading\.(\w+)',s))
    if used & OPT:
        for n in OPT: s=re.sub(r'\breading\.'+n+r'\b','api_server.'+n,s)
        s=re.sub(r'(from fractile\.reports import [^\n]*\breading\b[^\n]*\n)',r'from fractile.cli.options import api_server\n\1',s)
        if not used-OPT: s=s.replace('from fractile.reports import reading\n','')
    wr(f,s)
