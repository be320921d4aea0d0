"""Wrong command lines, files and streams: one line and an exit status, never a traceback."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import xvarpro as xv
from tests.support import CODE, invoke, linux
from xvarpro.cli import app

COMMANDS = ["backends", "compare", "verify", "run"]
MINE = f"""{CODE}
def fails():
    raise RuntimeError("not today")

def asks():
    return xv.separable(M, np.ones(0), data=np.ones(0)), np.ones(2)

def wrong():
    return 3

number = 3
"""


def refusal(*args):
    """What a command line that is wrong prints: one line, or what typer says of an option."""
    result = invoke(*args)
    assert isinstance(result.exception, SystemExit), (args, result.exception)
    assert result.exit_code == 2, (args, result.output)
    assert result.stderr.startswith("Usage") or result.stderr.count("\n") == 1, (args, result.stderr)
    return result.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A problem, a result, and files that are neither."""
    path = tmp_path_factory.mktemp("files")
    (path / "mine.py").write_text(MINE)
    (path / "broken.py").write_text("def make(:\n")
    (path / "imports.py").write_text("import no_such_package_of_anybody\n")
    (path / "notes.txt").write_text("words")
    (path / "empty.npz").write_text("")
    np.savez(path / "other.npz", x=np.ones(3))
    spec = {}
    exec(MINE, spec)
    problem, theta0, over = spec["decays"]()
    xv.solve(problem, theta0, over=over, max_iter=3).save(path / "fit.npz", problem=f"{path}/mine.py:decays")
    return path


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS), ["run", "nothing"], ["verify", "x", "--out"]])
def test_every_command_says_its_version(command):
    result = invoke(*command, "--version")
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"xvarpro {xv.__version__}\n", "")


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_every_command_has_help(command):
    result = invoke(*command, "--help")
    assert result.exit_code == 0
    assert "Usage" in result.stdout
    assert "--version" in invoke("--help").stdout


PAIR = ["--backends", "numpy,array-api-strict", "--iterations", "2"]
VERIFY = ["verify", "{0}/fit.npz", "--problem", "{0}/mine.py:decays"]
WRONG = [
    (["nothing"], "No such command 'nothing'"),
    (["verify", "{0}/fit.npz", "--nothing"], "No such option"),
    (["verify", "{0}/absent.npz"], "absent.npz"),
    (["verify", "{0}"], "{0}"),
    *((["verify", f"{{0}}/{name}"], name) for name in ("notes.txt", "empty.npz", "other.npz")),
    ([*VERIFY, "--backend", "bogus"], "unknown backend 'bogus'"),
    ([*VERIFY, "--device", "banana"], "device must be one of"),
    ([*VERIFY, "--dtype", "float16"], "dtype must be"),
    ([*VERIFY, "--tolerance", "nan"], "tolerance must be"),
    ([*VERIFY, "--tolerance", "x"], "Invalid value"),
    ([*VERIFY, "--out", "{0}/no/x.json"], "No such file or directory"),
    ([*VERIFY, "--out", "{0}"], "Is a directory"),
    (["verify", "{0}/fit.npz", "--problem", "{0}/mine.py:fails"], "RuntimeError: not today ({0}/mine.py, line 14)"),
    (["verify", "{0}/fit.npz", "--problem", "{0}/mine.py:asks"], "must"),
    (["verify", "{0}/fit.npz", "--problem", "{0}/mine.py:number"], "no function number"),
    (["verify", "{0}/fit.npz", "--problem", "{0}/broken.py:make"], "broken.py failed with SyntaxError: invalid syntax"),
    (["verify", "{0}/fit.npz", "--problem", "{0}/imports.py:make"], "No module named 'no_such_package_of_anybody'"),
    (["compare", *PAIR, "{0}/mine.py:fails"], "mine.py:fails failed with RuntimeError: not today"),
    (["compare", *PAIR, "{0}/mine.py:asks"], "at least one row"),
    (["compare", *PAIR, "nothing"], "file.py:function"),
    (["compare", *PAIR, "nowhere.at.all:decays"], "no module nowhere.at.all"),
    (["compare", *PAIR, "{0}/other.py:decays"], "no file"),
    (["compare", *PAIR, "{0}/mine.py:other"], "no function other"),
    (["compare", *PAIR, "{0}/mine.py:wrong"], "must return (problem, theta0)"),
    (["compare", *PAIR, "{0}/mine.py:decays", "--algorithm", "Algorithm"], "--algorithm must name one of"),
    (["compare", *PAIR, "{0}/mine.py:decays", "--algorithm", "__doc__"], "--algorithm must name one of"),
    (["compare", *PAIR[:2], "{0}/mine.py:decays", "--iterations", "-1"], "max_iter must be"),
    (["compare", *PAIR, "{0}/mine.py:decays", "--dtype", ""], "dtype must be"),
    (["compare", *PAIR, "{0}/mine.py:decays", "--out", "{0}/notes.txt"], "notes.txt"),
    (["compare", "--backends", ",", "{0}/mine.py:decays"], "a name, or several with commas"),
]


def test_a_wrong_command_line_is_one_line(folder, subtests):
    for args, words in WRONG:
        with subtests.test(" ".join(args)):
            assert words.format(folder) in refusal(*(arg.format(folder) for arg in args))


VALUES = [
    "", "bogus", "nan", "-1", "0", "1e400", "cpu", "numpy", "float32", "/dev/null", "/dev/null/x", "é", "--", "9" * 30,
]  # fmt: skip
OPTIONS = {
    "verify": ["--problem", "--backend", "--device", "--dtype", "--tolerance", "--out", "--trust", "--no-run"],
    "compare": ["--backends", "--algorithm", "--iterations", "--dtype", "--out"],
}


@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(OPTIONS)), st.data())
def test_random_options_end_in_a_status(folder, monkeypatch, command, data):
    monkeypatch.chdir(folder)
    first = ["fit.npz", "--no-run"] if command == "verify" else ["mine.py:decays", *PAIR]
    chosen = data.draw(st.lists(st.tuples(st.sampled_from(OPTIONS[command]), st.sampled_from(VALUES)), max_size=3))
    result = invoke(command, *first, *(x for pair in chosen for x in pair))
    assert result.exception is None or isinstance(result.exception, SystemExit), (chosen, result.exception)
    assert result.exit_code in (0, 1, 2)


SAYING = [["--version"], ["--help"], ["backends"], ["verify", "--help"]]


def ended(args):
    with pytest.raises(SystemExit) as caught:
        app(args)
    return caught.value.code


@linux
@pytest.mark.parametrize("args", SAYING, ids=" ".join)
def test_a_full_device_is_one_line(args, monkeypatch, capsys):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert ended(args) == 2
    error = capsys.readouterr().err
    assert "No space left on device" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("args", SAYING, ids=" ".join)
def test_a_closed_pipe_ends_in_silence(args, monkeypatch, capsys):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert ended(args) in ([0] if args == ["backends"] else [0, 1])
    assert capsys.readouterr().err == ""


def test_too_little_memory_is_one_line(monkeypatch):
    def known():
        raise MemoryError("Unable to allocate 4 EiB")

    monkeypatch.setattr(xv.backends, "known", known)
    assert refusal("backends") == "error: not enough memory: Unable to allocate 4 EiB\n"


SHELL = """
import os, sys
from xvarpro.cli import app

for number, line in enumerate(sys.stdin):
    if os.fork() == 0:
        args = []
        for word in line.split():  # 2>&- closes a stream, > /dev/full leads it there
            fd, sign, target = word.rpartition(">")
            if not sign:
                args.append(word)
            elif target == "&-":
                setattr(sys, "stderr" if fd == "2" else "stdout", None)
                os.close(int(fd or 1))
            else:
                os.dup2(os.open(target, os.O_WRONLY), int(fd or 1))
        app(args)
    print(number, os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""
STREAMS = {
    "backends >/dev/full": (2, "error: No space left on device\n"),
    "verify nothing.npz 2>&-": (2, ""),
    "verify nothing.npz 2>/dev/full": (2, ""),
    "--version >&- 2>&-": (0, ""),
}


@linux
def test_streams_of_a_shell():
    """What one process forks for each line ends as a program of its own would."""
    lines = "".join(f"{line}\n" for line in STREAMS)
    done = subprocess.run([sys.executable, "-c", SHELL], input=lines, capture_output=True, text=True, check=True)
    found = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert found == [(number, status) for number, (status, _) in enumerate(STREAMS.values())]
    assert done.stderr == "".join(error for _, error in STREAMS.values())
