"""The program ``fractile`` (and ``kubectl fractile``): finds the command, runs it, turns errors into one sentence."""

import importlib
import sys
from typing import Any, NoReturn, cast

import click

from fractile import __version__
from fractile.errors import FractileError
from fractile.model.words import printable

# name -> (module that holds `command`, short help shown by --help without importing it)
COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("fractile.cli.up", "Start a local Kubernetes cluster with simulated cards and Fractile on it."),
    "down": ("fractile.cli.down", "Stop a local cluster and remove what it left on this machine."),
    "inspect": ("fractile.cli.inspect", "Show cards, what is allocated on them, and the pods that hold them."),
    "classes": ("fractile.cli.classes", "Show the classes of devices that containers can ask for by name."),
    "devices": ("fractile.cli.devices", "Show cards and other devices one by one, and the pods that hold them."),
    "allocations": (
        "fractile.cli.allocations",
        "Show what pods request of every resource of every node, Fractile's or not.",
    ),
    "quota": ("fractile.cli.quota", "Show how many cards each namespace may hold, and how many it holds."),
    "why": ("fractile.cli.why", "Show why a pod waits, or where it runs, what it holds and what it uses."),
    "top": ("fractile.cli.top", "Show what cards and containers use now; on a terminal, continuously."),
    "limits": ("fractile.cli.limits", "Show what one container may use of its cards, and what its processes use."),
    "debug-state": ("fractile.cli.debug_state", "Print the internal state of a running agent or control plane."),
    "simulate": ("fractile.cli.simulate", "Place recorded pods on recorded nodes and compare policies."),
    "score": ("fractile.cli.score", "Show how kube-scheduler scores the nodes of a file for a pod, term by term."),
    "scheduler-config": (
        "fractile.cli.scheduler_config",
        "Print a kube-scheduler configuration that packs nodes and calls Fractile's extender.",
    ),
    "install-scheduler": (
        "fractile.cli.install_scheduler",
        "Make kube-scheduler of this kubeadm node call Fractile's extender, or undo that.",
    ),
    "plan": ("fractile.cli.plan", "Show what fits, why pods wait, how many nodes to add, and what could be moved."),
    "kubectl": ("fractile.cli.kubectl", "Run kubectl against a local cluster."),
    "demo": ("fractile.cli.demo", "Run the demonstrations on a local cluster and explain what happened."),
    "prepare": ("fractile.cli.prepare", "Install and build what a local cluster needs, without starting anything."),
    "completion": ("fractile.cli.completion", "Print the tab completion script for bash, zsh or fish."),
    "control-plane": ("fractile.main.control_plane", "Run the scheduler extender and the controllers."),
    "agent": ("fractile.main.agent", "Run the node agent: inventory and device plugin."),
    "alive": ("fractile.main.alive", "Check that the agent of this node is alive, for kubelet's probe."),
    "simulated-cards": (
        "fractile.lab.programs.simulated_cards",
        "Write the file of simulated cards for a node without GPUs.",
    ),
    "service-proxy": ("fractile.lab.programs.service_proxy", "Stand in for kube-proxy in a local cluster."),
    "replica-proxy": (
        "fractile.lab.programs.replica_proxy",
        "Forward connections to the leading one of several control planes on this machine.",
    ),
    "hollow-node": ("fractile.lab.programs.hollow_node", "Run a node without kubelet for clusters without root."),
}


class LazyGroup(click.Group):
    """Imports a command only when it is run: ``fractile inspect`` must not pay for gRPC and web servers."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Show the Python traceback of an error.")
@click.pass_context
def cli(ctx: click.Context, debug: bool) -> None:
    """Share GPUs among many pods on any Kubernetes cluster."""
    ctx.ensure_object(dict)["debug"] = debug


def main(argv: list[str] | None = None, prog: str = "fractile") -> None:
    """Entry point. A known error is one sentence on stderr and exit status 1; usage errors exit with 2."""
    args = sys.argv[1:] if argv is None else argv
    debug = "--debug" in args
    try:
        status: Any = cli.main(args=args, prog_name=prog, standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.exceptions.Exit as e:
        sys.exit(e.exit_code)
    except click.ClickException as e:
        if debug:
            raise
        e.show()
        sys.exit(e.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except (FractileError, OSError) as e:
        _fail(e, str(e), debug=debug)
    except Exception as e:
        cause = _cause(e)
        if isinstance(cause, FractileError | OSError):
            _fail(e, str(cause), debug=debug)
        # The last resort: a bug, reported without a traceback.
        _fail(
            e,
            f"unexpected {type(cause).__name__}: {cause}; run the command again with --debug, and report the error",
            debug=debug,
        )
    else:
        sys.exit(status if isinstance(status, int) else 0)


def _cause(error: BaseException) -> BaseException:
    """The error inside a TaskGroup's group: the first of those that ended it."""
    while isinstance(error, BaseExceptionGroup):
        error = cast(BaseExceptionGroup[BaseException], error).exceptions[0]
    return error


def _fail(error: Exception, sentence: str, *, debug: bool) -> NoReturn:
    if debug:
        raise error
    lines = map(printable, sentence.splitlines())  # the text may come from servers and manifests
    click.echo("fractile: " + "\n".join(lines), err=True)
    sys.exit(1)


def kubectl_main() -> None:
    """Entry point of ``kubectl fractile``."""
    main(prog="kubectl fractile")
