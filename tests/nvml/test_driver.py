"""The NVML driver against a small library with NVML's C interface, in a process of its own (pynvml loads it once)."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "fake_nvml.c"
PROGRAM = """
import json, logging, sys
from fractile.errors import SetupError
from fractile.nvml.driver import NvmlDriver
logging.basicConfig(format="%(message)s")
try:
    driver = NvmlDriver()
except SetupError as e:
    sys.exit(f"setup: {e}")
cards = driver.cards()
driver.close()
driver.close()
import msgspec
sys.stdout.buffer.write(msgspec.json.encode(cards, enc_hook=dict))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: install gcc")
    folder = tmp_path_factory.mktemp("nvml")
    made = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", made, SOURCE], check=True)
    return folder


def run(library: Path | None, **environ: str) -> subprocess.CompletedProcess[str]:
    path = {"LD_LIBRARY_PATH": str(library)} if library else {}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**path, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_cards_are_read_as_nvml_gives_them_with_memory_in_whole_mib(library: Path) -> None:
    done = run(library)
    assert done.returncode == 0, done.stderr
    cards = json.loads(done.stdout)
    assert cards == [
        {
            "uuid": "GPU-00000000-0000-4000-8000-000000000000",
            "index": 0,
            "model": "Tesla V100-SXM2-16GB",
            "memory": 16276,
            "pci_bus_id": "00000000:00:04.0",
            "healthy": True,
            "context": 0,
            "interconnect": {"peers": "X ? ?", "nvlink": 0, "pcie": 0, "lanes": 0, "numa": -1},
            "type": "gpu",
            "shares": 1,
            "properties": {},
            "node": "",
        },
        {
            "uuid": "GPU-00000002-0000-4000-8000-000000000000",
            "index": 2,
            "model": "NVIDIA A100-SXM4-80GB",
            "memory": 81920,
            "pci_bus_id": "00000000:00:06.0",
            "healthy": True,
            "context": 0,
            "interconnect": {"peers": "? ? X", "nvlink": 0, "pcie": 0, "lanes": 0, "numa": -1},
            "type": "gpu",
            "shares": 1,
            "properties": {},
            "node": "",
        },
    ]


def test_a_lost_card_is_left_out_with_a_log_line_and_hides_no_other(library: Path) -> None:
    assert "card left out index=1 reason=GPU is lost" in run(library).stderr


def test_a_second_close_is_harmless(library: Path) -> None:
    done = run(library)
    assert "nvml shutdown failed" in done.stderr
    assert done.returncode == 0


def test_without_the_driver_the_error_says_what_to_do(tmp_path: Path) -> None:
    done = run(tmp_path)
    if done.returncode == 0:
        pytest.skip("this machine has a driver")
    assert done.stderr.startswith("setup: NVML does not start")
    assert "--simulated-cards" in done.stderr


def test_a_driver_that_does_not_start_is_a_sentence_too(library: Path) -> None:
    done = run(library, FAKE_NVML_BROKEN="1")
    assert done.stderr.startswith("setup: NVML does not start")
