"""Sharded arrays of JAX: in one process with eight devices, and in two processes with two devices each."""

import os
import re
import socket
import subprocess
import sys
from math import prod
from pathlib import Path

import pytest

pytest.importorskip("jax")

PROGRAMS = Path(__file__).parent / "sharding"
EXCHANGE = re.compile(r"= (.*?) (?:all-gather|all-to-all|all-reduce|collective-permute|reduce-scatter)(?:-start)?\(")


def started(program, devices, *arguments, flags=""):
    """A process that runs a program with so many devices of JAX."""
    quick = "--xla_backend_optimization_level=0"  # compiling takes most of the time
    flags = f"--xla_force_host_platform_device_count={devices} {quick} {flags}"
    options = {"XLA_FLAGS": flags, "JAX_ENABLE_X64": "1"}
    environment = os.environ | options | {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(PROGRAMS / f"{program}.py"), *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finished(*processes):
    try:
        outputs = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output[-3000:]


def test_solves_of_sharded_arrays_are_those_of_whole_ones():
    finished(started("one_process", 8))


@pytest.mark.thorough
def test_other_problems_and_algorithms_which_compile_for_long():
    finished(started("more_solves", 8))


def test_no_device_gets_the_rows_or_columns_of_others(tmp_path):
    """What programs exchange does not depend on the 4096 rows or columns that are sharded."""
    finished(started("sent", 8, flags=f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text"))
    found = [
        (max(map(entries, re.findall(r"\[([\d,]*)\]", match[1]))), path.name, match[0])
        for path in Path(tmp_path).rglob("*after_optimizations.txt")
        for match in map(EXCHANGE.search, path.read_text().splitlines())
        if match
    ]
    assert max(found)[0] < 512, max(found)
    assert any("iterate" in name for _, name, _ in found)


def entries(shape):
    return prod(int(n) for n in shape.split(",") if n)


def test_two_processes_solve_as_one(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    finished(*(started("two_processes", 2, rank, port, tmp_path) for rank in range(2)))
