"""A mutation campaign: what the conformance suite and the tests say to faults that are planted one at a time.

python benchmarks/mutation.py campaign.json [--count 200] [--seed N] [--room "backends: torch"] [--jobs 2]

It needs ``pip install coverage`` and a system with ``fork``. First every case of the suite and every test runs once,
and the lines that it executes are kept in a cache folder for as long as no source changes. Then each mutant is asked
the cheapest cases that execute its line, one of each check before the second of any, and where they all pass, the
cheapest tests that do. A mutant lives in a process that forks after the frameworks are imported: no file is changed.
What is found is written to ``campaign.json`` as it is found, and the same command goes on where it was interrupted.
``campaign.md`` is the table.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import json
import os
import random
import resource
import secrets
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "xvarpro"
EQUIVALENT = Path(__file__).with_name("mutation_equivalent.txt")

if __name__ == "__main__":
    sys.path[0] = str(ROOT)  # this folder has modules of names that frameworks import

from benchmarks.mutants import Mutant, mutants, planted  # noqa: E402


class Room(NamedTuple):
    """Files with a rate of their own, and how many of 100 mutants they get."""

    share: int
    files: tuple[str, ...]  # patterns, below SOURCE


SHARED = ("calculus", "columns", "eager", "exchange", "factorisations", "hosted", "interface", "special", "taped")
ROOMS = {
    "backends: torch": Room(10, ("backends/torch.py",)),
    "backends: jax": Room(6, ("backends/jax.py",)),
    "backends: numpy, strict": Room(8, ("backends/numpy.py", "backends/strict.py")),
    "backends: shared": Room(9, tuple(f"backends/{name}.py" for name in SHARED)),
    "backends: tape": Room(13, ("backends/tape/*.py", "backends/tape/rules/*.py")),
    "lower": Room(12, ("lower/*.py", "lower/weight_sets/*.py")),
    "objective": Room(9, ("objective/*.py",)),
    "sets": Room(12, ("sets/*.py",)),
    "algorithms": Room(12, ("algorithms/*.py", "algorithms/steps/*.py")),
    "results": Room(3, ("results/result.py", "results/trace.py", "results/serialization.py")),
    "driver": Room(6, ("driver/*.py",)),
    "statistics": Room(8, ("statistics/*.py",)),
}
# areas that are recorded; JAX compiles for seconds
ADAPTERS = ("exchange", "arithmetic", "derivatives", "control flow", "factorisations", "numerics scope")
TARGETS = {
    ("numpy", "cpu float64"): None,
    ("torch", "cpu float64"): None,
    ("array-api-strict", "cpu float64"): None,
    ("jax", "cpu float64"): ADAPTERS,
    ("jax", "cpu float32"): ADAPTERS,  # of each case that is compiled in one precision, it is in one of the two
}
# where each case is asked too: it executes what it does on the first target
OTHERS = {
    "numpy": (("numpy", "cpu float32"), ("array-api-strict", "device1 float64")),
    "torch": (("torch", "cpu float32"),),
    "array-api-strict": (("array-api-strict", "device1 float64"),),
}
# tests of pages, programs and the suite itself: what the package computes is not what they are about
OTHER_TESTS = (
    "cli", "compilations", "conformance", "docs", "gpu", "imports", "mutation", "plotting",
    "readme",
)  # fmt: skip
FRAMEWORKS = (
    "numpy", "scipy.optimize", "scipy.sparse.linalg", "scipy.special", "torch", "jax", "array_api_strict",
    "array_api_compat.numpy", "array_api_compat.torch", "optree", "tqdm", "mpmath", "pytest",
)  # fmt: skip
ANY = -1  # some line of a file
MEMORY = 8 * 2**30  # bytes for a process: a loop without an end may allocate
MOST = 400  # tests that are collected for a mutant: each takes time before it runs
PATIENCE = 10  # times as long as a case takes, and as many seconds: it will not end


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, help="default: a fresh one")
    parser.add_argument("--room", action="append", choices=list(ROOMS), help="may be given again; default: all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit", type=float, default=40.0, help="seconds of cases, and of tests, for a mutant")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "xvarpro-mutation")
    options = parser.parse_args()
    state = digest(ROOT / "src", ROOT / "tests", ROOT / "benchmarks" / "mutants.py")
    campaign: dict[str, Any] = {"state": state, "seed": secrets.randbits(32), "mutants": {}}
    if options.seed is not None:
        campaign["seed"] = options.seed
    if options.file.exists():
        campaign = json.loads(options.file.read_text())
        if campaign["state"] != state:
            parser.error(f"{options.file} is of other sources: begin another file")
    prepare(options.cache)
    rooms = options.room or list(ROOMS)
    cases = recorded(options.cache, options.jobs, rooms)
    chosen = drawn(campaign["seed"], options.count, rooms)
    for number, verdict in answered(chosen, cases, campaign["mutants"], options.jobs, options.limit):
        campaign["mutants"][str(number)] = verdict
        print(number, *(verdict[k] for k in ("verdict", "file", "line", "old", "new", "by")), sep=" | ", flush=True)
        options.file.write_text(json.dumps(campaign, indent=1))
        options.file.with_suffix(".md").write_text(page(campaign))
    print(page(campaign))
    return 0


def of_backends(room: str) -> bool:
    """Whether the files of a room are a backend's: what is written once is asked on NumPy, and on strict `OTHERS`."""
    return room.startswith("backends")


# ---------------------------------------------------------------------------------------------------------- drawing


class Drawn(NamedTuple):
    """A mutant of a file."""

    room: str
    file: str
    mutant: Mutant


def drawn(seed: int, count: int, rooms: list[str]) -> list[Drawn]:
    """Mutants of the rooms, as many as their shares say: a kind first, so that rare kinds come, then a place.

    No line has two. They are shuffled, so that the first of them are a sample too.
    """
    rng = random.Random(seed)
    total = sum(ROOMS[name].share for name in rooms)
    chosen = []
    for name in rooms:
        kinds: dict[str, list[Drawn]] = defaultdict(list)
        for path in sorted(p for pattern in ROOMS[name].files for p in SOURCE.glob(pattern)):
            for mutant in mutants(path.read_text()):
                kinds[mutant.kind].append(Drawn(name, str(path.relative_to(SOURCE)), mutant))
        taken: dict[tuple[str, int], Drawn] = {}
        while kinds and len(taken) < round(count * ROOMS[name].share / total):
            kind = rng.choice(sorted(kinds))
            one = kinds[kind].pop(rng.randrange(len(kinds[kind])))
            if not kinds[kind]:
                del kinds[kind]
            taken.setdefault((one.file, one.mutant.first), one)
        chosen += taken.values()
    rng.shuffle(chosen)
    return chosen


# -------------------------------------------------------------------------------------------------------- processes

Say = Callable[[Any], None]
Ask = Callable[[str, str, list["Case"], float, Say], None]


def prepare(cache: Path, frameworks: Iterable[str] = FRAMEWORKS) -> None:
    """Import everything but the package: the processes that mutants live in begin with it."""
    cache.mkdir(parents=True, exist_ok=True)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    # as conftest.py: programs that are run once need no optimised code; and most are those of the last mutant
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(cache / "jax")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
    os.chdir(ROOT)
    warnings.filterwarnings("ignore", message=".*fork", category=RuntimeWarning)
    for name in frameworks:
        importlib.import_module(name)
    loaded = [name for name in sys.modules if name.partition(".")[0] == "xvarpro"]
    assert not loaded, f"imported before a fault can be planted: {loaded}"


def in_processes(work: deque[tuple[Any, Callable[[Say], None]]], jobs: int) -> Iterator[tuple[Any, list[Any], int]]:
    """Run functions in processes of their own; yields key, what the function said, and its end, as they end.

    More work may be appended while this runs. A function that dies has said what it said.
    """
    running: dict[int, tuple[Any, Path]] = {}
    while work or running:
        while work and len(running) < jobs:
            key, fun = work.popleft()
            folder = Path(tempfile.mkdtemp(prefix="mutant-"))
            pid = os.fork()
            if not pid:
                _child(fun, folder)
            running[pid] = key, folder
        pid, status = os.wait()
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # what it started and left behind
        key, folder = running.pop(pid)
        said = [json.loads(line) for line in (folder / "said").read_text().splitlines()]
        shutil.rmtree(folder)
        yield key, said, os.waitstatus_to_exitcode(status)


def _child(fun: Callable[[Say], None], folder: Path) -> None:
    code = 1
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(folder / "hypothesis")
        screen = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(screen, stream)
        with (folder / "said").open("w") as file:

            def say(x: Any) -> None:
                file.write(json.dumps(x) + "\n")
                file.flush()

            try:
                fun(say)
                code = 0
            except BaseException:
                say({"raised": traceback.format_exc(limit=-3)})
    finally:
        os._exit(code)


def plant(file: str, source: str) -> None:
    """Have the package imported with another text of one of its files."""
    load = SourceFileLoader.get_code
    path = str(SOURCE / file)

    def get_code(self: SourceFileLoader, name: str) -> Any:
        return compile(source, path, "exec", dont_inherit=True) if self.path == path else load(self, name)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign]


# -------------------------------------------------------------------------------------------------------- recording


class Case(NamedTuple):
    """A case of the suite on a target, or a test.

    Attributes
    ----------
    group : tuple of str
        The check on its target, or the test function: what has many similar cases.
    name : str
    seconds : float
    """

    group: tuple[str, ...]
    name: str
    seconds: float


class Recorded(NamedTuple):
    """Cases that pass, and by file and line the numbers of those that execute it; lines that imports execute."""

    cases: list[Case]
    lines: dict[str, dict[int, set[int]]]
    imported: set[tuple[str, int]] = frozenset()

    def relevant(self, file: str, mutant: Mutant) -> list[Case]:
        """Those that execute a mutant: for what runs on import those that execute anything of the file."""
        lines = self.lines.get(file, {})
        found = {i for line in (ANY, *range(mutant.first, mutant.last + 1)) for i in lines.get(line, ())}
        # a lambda in a table runs with its case, and what fills the table concerns every case of the file
        loaded = not mutant.runs or any((file, n) in self.imported for n in range(mutant.first, mutant.last + 1))
        rest = {i for numbers in lines.values() for i in numbers} - found if loaded else set()
        name = Path(file).stem.strip("_")
        return [case for part in (found, rest) for case in cheapest([self.cases[i] for i in sorted(part)], name)]


def cheapest(cases: list[Case], name: str) -> list[Case]:
    """One case of every group, cheapest first, then a second one of each, and so on; those of that name before all."""
    groups: dict[tuple[str, ...], list[Case]] = defaultdict(list)
    for case in sorted(cases, key=lambda c: c.seconds):
        groups[case.group].append(case)
    turns = [(turn, case.seconds, case) for group in groups.values() for turn, case in enumerate(group)]
    return [case for *_, case in sorted(turns, key=lambda t: (name not in t[2].group[-1] + t[2].name, *t))]


def digest(*paths: Path) -> str:
    """A name for what is in files, or in the modules of folders."""
    found = hashlib.sha256()
    for file in (f for path in paths for f in ([path] if path.is_file() else sorted(path.rglob("*.py")))):
        found.update(str(file.relative_to(ROOT)).encode() + file.read_bytes())
    return found.hexdigest()[:12]


def recorded(cache: Path, jobs: int, rooms: list[str]) -> tuple[Recorded, Recorded]:
    """What the cases of the suite, and the tests, execute: as much of it as the rooms are asked.

    A piece is in the cache for as long as its part of the suite, or the file of the tests, is what it was. Of a file of
    the package that has changed since it is known that a case executes something of it, not which lines.
    """
    alone = all(map(of_backends, rooms))
    now = {str(p.relative_to(SOURCE)): digest(p) for p in SOURCE.rglob("*.py")}
    from_suite = {
        f"{backend}.{where}.{area}.{digest_of(area)}": partial(record_suite, backend, where, area)
        for (backend, where), some in TARGETS.items()
        if backend == "numpy" or any(map(of_backends, rooms))
        for area in (ADAPTERS if alone else some or areas())
    }
    tests = [p for p in sorted((ROOT / "tests").rglob("test_*.py")) if p.stem.split("_")[1] not in OTHER_TESTS]
    tests = [] if alone else [*tests, SOURCE]
    from_tests = {f"{p.stem}.{digest(p)}": partial(record_tests, str(p.relative_to(ROOT))) for p in tests}
    work = {**from_suite, **from_tests}
    left = sorted((name for name in work if not (cache / name).exists()), key=lambda name: name.startswith("jax"))
    missing = deque((name, work[name]) for name in left)
    for name, said, _ in in_processes(missing, jobs):
        piece = said[-1] if "cases" in said[-1] else {"cases": [], "lines": {}}
        print(name, len(piece["cases"]), "cases", said[-1].get("raised", ""), flush=True)
        if piece["cases"]:
            (cache / name).write_text(json.dumps({**piece, "digests": now}))
    return _merged(cache, from_suite, now), _merged(cache, from_tests, now)


def digest_of(area: str) -> str:
    """A name for all that checks share, and for the checks of an area."""
    folder = SOURCE / "conformance"
    checks = (p for p in sorted((folder / "checks").glob("*.py")) if f'"{area}"' in p.read_text())
    return digest(*(p for p in sorted(folder.glob("*")) if p.name not in ("checks", "__pycache__")), *checks)


def areas() -> tuple[str, ...]:
    """The areas of the suite, without importing it."""
    tree = ast.parse((SOURCE / "conformance" / "suite.py").read_text())
    assigned = (x for x in tree.body if isinstance(x, ast.Assign) and ast.unparse(x.targets[0]) == "AREAS")
    return tuple(ast.literal_eval(next(assigned).value))


def _merged(cache: Path, pieces: Iterable[str], now: dict[str, str]) -> Recorded:
    cases: list[Case] = []
    lines: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    imported: set[tuple[str, int]] = set()
    for name in pieces:
        if not (cache / name).exists():
            continue
        piece = json.loads((cache / name).read_text())
        start = len(cases)
        cases += (Case(tuple(group), title, seconds) for group, title, seconds in piece["cases"])
        for file, by_line in piece["lines"].items():
            same = piece["digests"][file] == now.get(file)
            for line, numbers in by_line.items():
                lines[file][int(line) if same else ANY].update(start + i for i in numbers)
        imported |= {(file, line) for file, some in piece["imported"].items() for line in some}
    return Recorded(cases, lines, imported)


class Recorder:
    """The lines that each case executes."""

    def __init__(self) -> None:
        import coverage

        self.coverage = coverage.Coverage(data_file=None, source=[str(SOURCE)], config_file=False, messages=False)
        self.coverage.start()
        self.cases: list[tuple[tuple[str, ...], str, float]] = []
        self.passed: list[str] = []

    def begin(self) -> None:
        self.coverage.switch_context(str(len(self.cases)))
        self.began = time.process_time()

    def end(self, group: tuple[str, ...], name: str, ok: bool) -> None:
        """A case that does not pass, or does not apply, kills none: its lines are not kept."""
        self.passed += [str(len(self.cases))] if ok else []
        self.cases.append((group, name, round(time.process_time() - self.began, 4)))

    def said(self) -> dict[str, Any]:
        self.coverage.stop()
        data = self.coverage.get_data()
        passed = set(self.passed)
        found, imported = {}, {}
        for path in data.measured_files():
            file, by_line = str(Path(path).relative_to(SOURCE)), data.contexts_by_lineno(path)
            kept = {line: sorted(int(c) for c in set(contexts) & passed) for line, contexts in by_line.items()}
            found[file] = {line: numbers for line, numbers in kept.items() if numbers}
            imported[file] = sorted(line for line, contexts in by_line.items() if "" in contexts)
        return {"cases": self.cases, "lines": found, "imported": imported}


def record_suite(backend: str, where: str, area: str, say: Say) -> None:
    """Every case of an area on a target, each as if it were the first."""
    recorder = Recorder()
    target, checks = _suite(backend, where)
    from xvarpro.conformance import runner

    for check in checks:
        if check.area != area or target.dtype not in check.dtypes:
            continue
        for case, given in check.cases().items():
            recorder.begin()
            outcome = runner.run_case(target, check, case, given)
            recorder.end((backend, where, area, check.name), case, outcome.state == "passed")
            target.forget()
            target.reference.forget()
    say(recorder.said())


def record_tests(path: str, say: Say) -> None:
    """Every test of a file; of a folder, its doctests."""
    import pytest

    recorder = Recorder()

    class Plugin:
        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
            self.reports: list[str] = []
            recorder.begin()
            found = yield
            function = item.nodeid.partition("[")[0]
            recorder.end((function,), item.nodeid, self.reports == ["passed"] * 3)
            return found

        def pytest_runtest_logreport(self, report: Any) -> None:
            self.reports.append(report.outcome)

    # JAX compiles for seconds, and faults in its adapter are the suite's to find
    pytest.main([*PYTEST, "-k", "not jax", path], plugins=[Plugin()])
    say(recorder.said())


# a process that a test leaves running would end pytest with an error, and what all its tests executed would be lost
PYTEST = (
    "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:unraisableexception", "--hypothesis-seed=0",
)  # fmt: skip


def _suite(backend: str, where: str) -> tuple[Any, list[Any]]:
    """A target, and all checks."""
    import xvarpro
    from xvarpro.conformance import runner, suite

    assert Path(xvarpro.__file__).is_relative_to(SOURCE), f"{xvarpro.__file__} is not what the faults are planted in"
    device, dtype = where.split()
    (target,) = runner.targets([backend], [device], [dtype])
    return target, list(suite.every())


# ---------------------------------------------------------------------------------------------------------- asking


def answered(
    chosen: list[Drawn], cases: tuple[Recorded, Recorded], known: dict[str, Any], jobs: int, limit: float
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The verdict on every mutant that has none, as they come.

    What kills first is asked once without a fault too: a case that fails then is not asked again.
    """
    work: deque[tuple[Any, Callable[[Say], None]]] = deque()
    found: dict[int, dict[str, Any]] = {}
    stages: dict[int, list[tuple[str, Ask, list[Case]]]] = {}
    texts: dict[int, tuple[str, str]] = {}
    fit: set[Case] = set()
    unfit: set[Case] = set()

    def ask(number: int) -> None:
        _, question, asked = stages[number][0]
        asked = [case for case in asked if case not in unfit]
        work.appendleft(((number, asked, False), partial(question, *texts[number], asked, limit)))

    for number, (room, file, mutant) in enumerate(chosen):
        if str(number) in known:
            continue
        text, old, new = planted((SOURCE / file).read_text(), mutant)
        texts[number] = file, text
        found[number] = {
            "room": room, "file": file, "line": mutant.first, "kind": mutant.kind, "old": old, "new": new,
            "verdict": "not covered", "by": "", "seconds": 0.0, "asked": {},
        }  # fmt: skip
        suite, tests = (recorded.relevant(file, mutant) for recorded in cases)
        suite = suite if of_backends(room) else [case for case in suite if case.group[0] == "numpy"]
        there = (("suite", ask_suite, [c for case in suite for c in twins(case)]), ("tests", ask_tests, tests))
        stages[number] = [
            (name, question, affordable(asked if name == "suite" else asked[:MOST], limit))
            for name, question, asked in there
            if asked
        ]
        found[number]["asked"] = {
            name: f"{len(some)} of {len(asked)}"
            for name, _, asked in there
            for n, _, some in stages[number]
            if n == name
        }
    for number in reversed(found):
        if stages[number]:
            ask(number)
        else:
            yield number, found[number]
    for (number, asked, again), said, code in in_processes(work, jobs):
        one, (name, question, _) = found[number], stages[number][0]
        end, by, why, seconds = verdict_of(said, code)
        if again:
            (fit if end == "survived" else unfit).add(asked[0])
            if end == "survived":
                yield number, one
            else:
                ask(number)
            continue
        one["verdict"] = name if end == "killed" else end
        one["by"] = " ".join((*asked[by].group, asked[by].name, why)) if by is not None else why
        one["seconds"] = round(one["seconds"] + seconds, 1)
        if end == "survived" and stages[number][1:]:
            del stages[number][0]
            ask(number)
        elif by is None or asked[by] in fit:
            yield number, one
        else:
            work.appendleft(((number, [asked[by]], True), partial(question, "", "", [asked[by]], limit)))


def twins(case: Case) -> list[Case]:
    """A case of the suite on all targets of its backend that are asked."""
    backend, first, *rest = case.group
    there = [(backend, first), *OTHERS.get(backend, ())]
    return [case._replace(group=(*where, *rest)) for where in there]


def affordable(cases: list[Case], limit: float) -> list[Case]:
    """The first of the cases, for as many seconds: one at least."""
    spent, found = 0.0, []
    for case in cases:
        spent += case.seconds
        if found and spent > limit:
            break
        found.append(case)
    return found


def verdict_of(said: list[dict[str, Any]], code: int) -> tuple[str, int | None, str, float]:
    """What became of a mutant, the case that says so, why, and seconds; what dies is killed by what it was asked."""
    last, asking = said[-1], [x["asking"] for x in said if "asking" in x]
    if "end" in last:
        return last["end"], asking[-1] if last["end"] == "killed" else None, last["why"], last["seconds"]
    if len(asking) < 2:
        return "does not import", None, last.get("raised", "dies"), 0.0
    why = last.get("raised", "").strip().rpartition("\n")[2] or signal.Signals(-code).name
    return "killed", asking[-1], why, 0.0


class Asking:
    """Says what is asked before it is asked, and ends the process where there is no answer in time."""

    def __init__(self, file: str, text: str, limit: float, say: Say) -> None:
        """Plant a fault and import the module, for one that cannot be imported is no mutant."""
        self.say, self.began, self.limit = say, time.monotonic(), limit
        self.about(None, 2.0)
        if file:
            plant(file, text)
            importlib.import_module(".".join(("xvarpro", *Path(file).with_suffix("").parts)))

    def about(self, number: int | None, seconds: float) -> None:
        self.say({"asking": number})
        signal.alarm(int(PATIENCE * (1 + seconds)))

    @property
    def late(self) -> bool:
        """Whether the mutant is slow: its cases have taken three times what they may."""
        return time.monotonic() - self.began > 3 * self.limit

    def end(self, end: str, why: str = "") -> None:
        signal.alarm(0)
        self.say({"end": end, "why": why, "seconds": time.monotonic() - self.began})


def ask_suite(file: str, text: str, cases: list[Case], limit: float, say: Say) -> None:
    """The cases of the suite, until one of them fails."""
    asking = Asking(file, text, limit, say)
    asking.about(0, 5.0)
    from xvarpro.conformance import runner

    targets: dict[tuple[str, str], Any] = {}
    given: dict[Any, Any] = {}
    for i, ((backend, where, area, name), case, seconds) in enumerate(cases):
        asking.about(i, seconds)
        if (backend, where) not in targets:
            targets[backend, where], checks = _suite(backend, where)
        target = targets[backend, where]
        (check,) = (c for c in checks if (c.area, c.name) == (area, name))
        if target.dtype not in check.dtypes:
            continue
        if check not in given:
            given[check] = check.cases()
        outcome = runner.run_case(target, check, case, given[check][case])
        if not outcome.ok:
            return asking.end("killed")
        if asking.late:
            break
    return asking.end("survived")


def ask_tests(file: str, text: str, cases: list[Case], limit: float, say: Say) -> None:
    """The tests, until one of them fails."""
    import pytest

    asking = Asking(file, text, limit, say)
    numbers = {case.name: i for i, case in enumerate(cases)}

    class Plugin:
        failed = ""

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
            number = numbers[item.nodeid]
            asking.about(number, cases[number].seconds)
            found = yield
            if asking.late:
                item.session.shouldstop = "the mutant is slow"
            return found

        def pytest_runtest_logreport(self, report: Any) -> None:
            self.failed = self.failed or (report.nodeid if report.failed else "")

        def pytest_collectreport(self, report: Any) -> None:
            self.pytest_runtest_logreport(report)

    plugin = Plugin()
    asking.about(0, 5.0)  # whatever keeps tests from being collected counts as the first of them
    code = pytest.main([*PYTEST, "-x", *numbers], plugins=[plugin])
    if code in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR):
        plugin.failed = plugin.failed or f"pytest ends with {code.name}"
    asking.end("killed" if plugin.failed else "survived", plugin.failed)


# -------------------------------------------------------------------------------------------------------- reporting


def equivalent() -> dict[tuple[str, str, str], str]:
    """Arguments by file, line as it was, and as it is: blocks of these, of any number of lines with + and of words."""
    found = {}
    for block in filter(None, EQUIVALENT.read_text().strip().split("\n\n")):
        file, old, *rest = (line.strip() for line in block.splitlines())
        why = " ".join(line for line in rest if not line.startswith("+ "))
        found |= {(file, old.removeprefix("- "), x.removeprefix("+ ")): why for x in rest if x.startswith("+ ")}
    return found


def page(campaign: dict[str, Any]) -> str:
    """A row for each room, and the faults that nothing has found."""
    known = equivalent()
    counted = [m for m in campaign["mutants"].values() if m["verdict"] != "does not import"]
    rows, missed = [], []
    for room in ROOMS:
        here = [m for m in counted if m["room"] == room]
        same = [m for m in here if (m["file"], m["old"], m["new"]) in known and m["verdict"] not in ("suite", "tests")]
        by = {name: sum(m["verdict"] == name for m in here) for name in ("suite", "tests")}
        alone = of_backends(room)
        killed, counting = by["suite"] + (0 if alone else by["tests"]), len(here) - len(same)
        missed += [m for m in here if m not in same and m["verdict"] not in ("suite",) + ("tests",) * (not alone)]
        if here:
            rate, bar = killed / max(counting, 1), 0.90 if alone else 0.95
            rows.append(
                f"| {room} | {len(here)} | {by['suite']} | {by['tests']} | {counting - sum(by.values())} | {len(same)} "
                f"| {rate:.0%} | {bar:.0%} {'suite alone' if alone else 'suite or tests'} |"
            )
    lines = [
        f"Seed {campaign['seed']}, {len(counted)} mutants, sources {campaign['state']}.",
        "",
        "| room | mutants | killed by the suite | by the tests | survived | equivalent | rate | bar |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
        *rows,
        "",
        *(
            f"- {m['room']}, {m['file']}:{m['line']}, {m['kind']}: `{m['old']}` -> `{m['new']}`: {m['verdict']}"
            f"{' ' + m['by'] if m['by'] else ''} (asked {m['asked']})"
            for m in missed
        ),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
