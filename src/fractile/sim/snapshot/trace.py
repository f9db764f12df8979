"""Read nodes and pods from CSV files in the format of Alibaba's 2023 traces. Errors name file, line and column."""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from fractile.errors import SetupError, WireError
from fractile.policy.nodes.view import WHOLE_GPU, TaskDemand

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
MODELS_COLUMN = "gpu_spec"  # may be missing, as in the multigpu traces

MOST_GPUS = 64  # of one node
_EMPTY: list[str] = []
MOST_CPU = 10_000_000  # thousandths: 10,000 CPUs
MOST_MEMORY = 1 << 30  # MiB: a PiB
_WHOLE_NUMBER = re.compile(r"[0-9]+(?:\.0+)?", re.ASCII)


class NodeRow(msgspec.Struct, frozen=True):
    """One node: CPU in thousandths, memory in MiB."""

    name: str
    cpu: int
    memory: int
    gpus: int
    model: str


class PodRow(msgspec.Struct, frozen=True):
    name: str
    ask: TaskDemand


def read_nodes(path: Path) -> tuple[NodeRow, ...]:
    """All nodes of a file; WireError names the invalid line and column, SetupError says why the file cannot be read."""
    nodes = tuple(_node(row) for row in _rows(path, NODE_COLUMNS))
    if not nodes:
        raise WireError(f"{path} has no nodes")
    return nodes


def read_pods(path: Path, nodes: Sequence[NodeRow]) -> tuple[PodRow, ...]:
    """All pods of a file. A pod that no node could ever take is refused: it would distort the figures."""
    most = _most_of(nodes)
    pods = tuple(_pod(row, most) for row in _rows(path, POD_COLUMNS))
    if not pods:
        raise WireError(f"{path} has no pods")
    return pods


class _Most(msgspec.Struct, frozen=True):
    """The most that any node of the cluster has; for GPUs by model."""

    cpu: int
    memory: int
    gpus: Mapping[str, int]

    def gpus_of(self, models: Sequence[str]) -> int:
        """The most GPUs on one node; ``models`` empty: of any model."""
        return max((n for model, n in self.gpus.items() if not models or model in models), default=0)


def _most_of(nodes: Sequence[NodeRow]) -> _Most:
    gpus: dict[str, int] = {}
    for n in nodes:
        if n.gpus:
            gpus[n.model] = max(n.gpus, gpus.get(n.model, 0))
    return _Most(max((n.cpu for n in nodes), default=0), max((n.memory for n in nodes), default=0), gpus)


class _Row(msgspec.Struct, frozen=True):
    path: Path
    line: int
    cells: Mapping[str, str]

    def wrong(self, column: str, why: str) -> WireError:
        return WireError(f"{self.path} line {self.line} column {column}: {why}")

    def number(self, column: str, most: int, least: int = 0) -> int:
        text = self.cells[column]
        if not _WHOLE_NUMBER.fullmatch(text) or len(text) > 18:
            raise self.wrong(column, f"{text!r} is not a whole number of 0 or more")
        value = int(text.split(".")[0])
        if not least <= value <= most:
            raise self.wrong(column, f"{value} is not within {least} and {most}")
        return value


def _rows(path: Path, columns: Sequence[str]) -> Iterator[_Row]:
    """Each line after the header; names in the first column must be unique."""
    names: set[str] = set()
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            heading = [c.strip() for c in next(reader, _EMPTY)]
            missing = [c for c in columns if c not in heading]
            if missing:
                raise WireError(f"{path} line 1 column {missing[0]}: this column is missing")
            twice = [c for c in heading if c and heading.count(c) > 1]
            if twice:
                raise WireError(f"{path} line 1 column {twice[0]}: it appears twice")
            for cells in reader:
                if cells:
                    yield _row(path, reader.line_num, heading, cells, columns[0], names)
    except UnicodeDecodeError as e:
        raise WireError(f"{path} is not UTF-8: {e.reason} at byte {e.start}") from None
    except csv.Error as e:
        raise WireError(f"{path} is not a CSV file: {e}") from None
    except OSError as e:
        raise SetupError(f"{path} cannot be read: {e.strerror}") from None


def _row(path: Path, line: int, heading: list[str], cells: list[str], key: str, names: set[str]) -> _Row:
    if len(cells) != len(heading):
        raise WireError(f"{path} line {line} column {len(cells)}: {len(cells)} cells under {len(heading)} headings")
    row = _Row(path, line, dict(zip(heading, (c.strip() for c in cells), strict=True)))
    name = row.cells[key]
    if not name:
        raise row.wrong(key, "it is empty")
    if name in names:
        raise row.wrong(key, f"{name} appears twice")
    names.add(name)
    return row


def _node(row: _Row) -> NodeRow:
    gpus = row.number("gpu", MOST_GPUS)
    model = row.cells["model"]
    if gpus and not model:
        raise row.wrong("model", f"it is empty on a node with {gpus} GPUs")
    cpu = row.number("cpu_milli", MOST_CPU, least=1)
    return NodeRow(row.cells["sn"], cpu, row.number("memory_mib", MOST_MEMORY, least=1), gpus, model if gpus else "")


def _pod(row: _Row, most: _Most) -> PodRow:
    gpus = row.number("num_gpu", MOST_GPUS)
    _check_gpus(row, gpus, most, ())
    models = _models(row, most) if gpus else ()
    _check_gpus(row, gpus, most, models)
    milli = row.number("gpu_milli", WHOLE_GPU) if gpus else 0
    if gpus and not milli:
        raise row.wrong("gpu_milli", f"{gpus} GPUs are asked for, but nothing of each")
    if gpus > 1 and milli < WHOLE_GPU:
        raise row.wrong("gpu_milli", f"{milli} thousandths of {gpus} GPUs: a part can be asked of one GPU only")
    cpu, memory = _within(row, "cpu_milli", MOST_CPU, most.cpu), _within(row, "memory_mib", MOST_MEMORY, most.memory)
    return PodRow(row.cells["name"], TaskDemand(cpu, memory, gpus, milli, models))


def _check_gpus(row: _Row, gpus: int, most: _Most, models: Sequence[str]) -> None:
    if gpus > most.gpus_of(models):
        of = f" of {'|'.join(models)}" if models else ""
        has = f"more than {most.gpus_of(models)}" if most.gpus else "any"
        raise row.wrong("num_gpu", f"{gpus} GPUs{of} are asked for, but no node has {has}")


def _within(row: _Row, column: str, absurd: int, largest: int) -> int:
    value = row.number(column, absurd)
    if value > largest:
        raise row.wrong(column, f"{value} are asked for, but no node has more than {largest}")
    return value


def _models(row: _Row, most: _Most) -> tuple[str, ...]:
    """The models as written: the published experiments treat ``A|B`` and ``A|B|B`` as two classes of pods."""
    named = tuple(m for m in row.cells.get(MODELS_COLUMN, "").split("|") if m)
    if named and not most.gpus.keys() & set(named):
        raise row.wrong(MODELS_COLUMN, f"no node has GPUs of model {named[0]}")
    return named
