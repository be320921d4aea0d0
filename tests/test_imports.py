"""What importing the package loads, and who may import whom inside it."""

import ast
import json
import re
import subprocess
import sys
from functools import cache
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest

import xvarpro
import xvarpro_conformance

ROOT = Path(xvarpro.__file__).parent
SUITE = Path(xvarpro_conformance.__file__).parent  # a package of its own, which keeps the same rules
FRAMEWORKS = ("torch", "jax", "jaxlib", "cupy", "cupyx", "array_api_strict")
ON_DEMAND = (
    *FRAMEWORKS, "safetensors", "scipy", "sklearn", "matplotlib", "typer", "rich", "tqdm", "pandas",
    "hypothesis", "xarray"
)  # fmt: skip

ROOT_MODULE = ""  # the public names; what is built with the package, not part of it, may import them
# from the ground floor up: a room imports from the lines above its own only
LAYERS = [
    ("_version", "errors"),
    ("core",),
    ("backends",),
    ("operators", "sets", "special", "losses"),
    ("lower", "models"),
    ("problem",),
    ("objective",),
    ("algorithms",),
    ("results",),
    ("driver",),
    ("batch",),
    ("statistics",),
    ("bayes",),
    ("fit",),
    ("certificate", "differentiation", "distributed"),
    ("components",),  # whose proofs use the intervals of certificates
    (ROOT_MODULE,),
    ("sklearn",),
    ("conformance",),
    ("cli",),
]
LAYER = {name: i for i, layer in enumerate(LAYERS) for name in layer}
BACKEND_LAYERS = [
    ("checksums",),
    ("interface", "group", "tape"),
    ("plugin", "columns", "eager", "forks"),
    ("registry",),
    ("modules", "powers"),
    ("",),
    ("exchange", "failures", "special", "external"),
    ("torch_checks", "torch_modules", "torch_settings", "jax_modules", "jax_sharding"),
    ("hosted", "calculus"),
    ("transformations", "adapters"),
    ("numpy", "cupy", "strict", "torch", "jax", "torch_group"),
]
BACKEND_LAYER = {name: i for i, layer in enumerate(BACKEND_LAYERS) for name in layer}
SEAMS = ("sets", "lower", "operators", "algorithms", "algorithms.steps")
FILES = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in sorted(ROOT.rglob("*.py"))} | {
    ".".join(("conformance", *p.relative_to(SUITE).with_suffix("").parts)): p
    for p in sorted(SUITE.rglob("*.py"))
    if p.name != "test_suite.py"
}
NAMES = ("numpy", "torch", "jax", "cupy", "array-api-strict")


def is_type_checking(node):
    return isinstance(node, ast.If) and getattr(node.test, "id", getattr(node.test, "attr", "")) == "TYPE_CHECKING"


@cache
def statements(module):
    """Those of a file, one by one, without what is for type checkers alone: a tenth of the nodes of its syntax."""
    todo, found = [ast.parse(FILES[module].read_text())], []
    while todo:
        node = todo.pop()
        if not is_type_checking(node):
            found.append(node)
            blocks = (getattr(node, name, ()) for name in ("body", "orelse", "finalbody", "handlers", "cases"))
            todo += [below for block in blocks if isinstance(block, list) for below in block]
    return found


@cache
def imports(module):
    """Names that a file imports, in its functions too, and those of methods that it imports when they are called."""
    found = []
    for node in statements(module):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative imports hide the direction"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Assign) and getattr(getattr(node.value, "func", None), "id", "") == "Method":
            found.append(ast.literal_eval(node.value.args[0]))
    return found


@cache
def origins():
    """The modules of the names that packages import on first use, by their stubs."""
    stubs = {".".join(("xvarpro", *p.parent.relative_to(ROOT).parts)): p for p in ROOT.rglob("__init__.pyi")}
    return {
        f"{package}.{alias.asname or alias.name}": node.module
        for package, path in stubs.items()
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ImportFrom) and node.module != package
        for alias in node.names
    }


def inside(module, through=False):
    """What a file imports from the package, as module names relative to it; on request through packages."""
    for name in imports(module):
        name = origins().get(name, name) if through else name
        name = re.sub(r"^xvarpro_conformance\b", "xvarpro.conformance", name)
        if name.split(".")[0] == "xvarpro":
            parts = name.split(".")[1:]
            while parts and ".".join(parts) not in FILES and ".".join([*parts, "__init__"]) not in FILES:
                parts.pop()  # a name, not a module
            yield ".".join(parts)


def top(module):
    return module.split(".")[0]


@cache
def edges():
    return [(module.removesuffix(".__init__"), target) for module in FILES for target in inside(module)]


def test_every_module_has_a_layer():
    assert {top(m) for m in FILES if m != "__init__"} <= set(LAYER)


def test_imports_point_downwards():
    for module, target in edges():
        if module != "__init__" and top(target) != top(module):
            assert LAYER[top(target)] < LAYER[top(module)], f"{module} imports {target or 'the package itself'}"


def test_seams_do_not_import_each_other():
    """Except where one is made of another: a lower level has an operator, a default method depends on the sets."""
    allowed = {("lower", "operators"), ("algorithms", "sets")}
    found = {(top(a), top(b)) for a, b in edges() if top(a) in SEAMS and top(b) in SEAMS and top(a) != top(b)}
    assert found <= allowed


def room(module):
    """The innermost seam that a module belongs to."""
    return max((s for s in SEAMS if f"{module}.".startswith(f"{s}.")), key=len, default=None)


# shared pieces that are no private modules: what a file of a seam takes of others there
COMMON = (
    "interface", "stack", "accumulation", "preconditioners", "vectors", "spectra", "common", "backtracking",
    "normal",
)  # fmt: skip
SHARED = {
    "sets.balls": "simplex",
    "sets.box": "each free",
    "sets.flattened": "balls products singular_values",
    "sets.free": "norms",
    "sets.k_largest": "ordered_weighted",
    "sets.oracle": "balls simplex",
    "sets.projection": "region",
    "sets.promises": "oracle region",
    "sets.region": "box each free norms",
    "sets.semidefinite": "k_largest lanczos simplex",
    "sets.singular_values": "balls box lanczos lp",
    **dict.fromkeys(("sets.combinators", "sets.products"), "balls box simplex"),
    "algorithms.quasi_newton": "accelerated spectral",
    "algorithms.reseed": "frank_wolfe",
    "algorithms.stochastic": "updates",
    **{f"algorithms.steps.{name}": "backtracking" for name in ("armijo", "exact", "open_loop", "short_step")},
    **dict.fromkeys(("operators.circulant", "operators.convolution"), "convolutions fourier"),
    "operators.convolutions": "fourier",
    "lower.newton": "hessian krylov qr",
    "lower.weight_sets.affine": "qr",
}


@pytest.mark.parametrize("seam", SEAMS)
def test_one_file_of_a_seam_needs_no_other_but_what_they_share(seam):
    """An extension is a new file and an export line. Only the choice of a default knows them all."""
    for module, target in edges():
        if room(module) == seam == room(target) and module not in (seam, f"{seam}.choice"):
            private = target.rsplit(".", maxsplit=1)[-1].startswith("_")
            below = target.startswith(f"{module.rpartition('.')[0]}.") and module.count(".") > seam.count(".") + 1
            allowed = {f"{seam}.{name}" for name in COMMON}
            allowed |= {f"{seam}.{name}" for name in SHARED.get(module, "").split()}
            assert private or below or target in allowed, f"{module} imports {target}"


def test_a_leading_underscore_means_private_to_its_folder():
    for module, target in edges():
        parts = target.split(".")
        for i, part in enumerate(parts):
            if part.startswith("_") and not part.startswith("__") and i:
                folder = ".".join(parts[:i])
                assert f"{module}.".startswith(f"{folder}."), f"{module} imports {target}"


def test_backends_import_downwards():
    for module, target in edges():
        if top(module) == top(target) == "backends" and "tape." not in f"{module}.":
            a, b = (x.removeprefix("backends").strip(".").split(".")[0] for x in (module, target))
            assert BACKEND_LAYER[b] < BACKEND_LAYER[a], f"{module} imports {target}"


def test_the_tape_knows_nothing_of_the_rest():
    """But for the device of an array, which arrays of some frameworks do not have, the type of an array, and errors."""
    for module, target in edges():
        if f"{module}.".startswith("backends.tape."):
            own = f"{target}.".startswith("backends.tape.")
            assert own or target in ("core.namespace", "core.struct", "errors"), f"{module} imports {target}"


def test_there_is_no_cycle():
    graph = {}
    for module in FILES:
        for target in inside(module, through=True):
            graph.setdefault(module.removesuffix(".__init__"), set()).add(target)
    done, path = set(), []

    def visit(node):
        assert node not in path, f"cycle: {' -> '.join([*path, node])}"
        if node in done:
            return
        path.append(node)
        for target in sorted(graph.get(node, ())):
            visit(target)
        path.pop()
        done.add(node)

    for node in sorted(graph):
        visit(node)


OF_A_FRAMEWORK = {
    **{f"backends.{name}": {name} for name in ("torch", "jax")},
    "backends.cupy": {"cupy", "cupyx"},
    "backends.strict": {"array_api_strict"},
    "backends.numpy": set(),
    **{f"conformance.frameworks.{name}": {name} for name in ("torch", "jax")},
    "conformance.frameworks.cupy": {"cupy", "cupyx"},
    "conformance.frameworks.strict": {"array_api_strict"},
}
MADE_FOR_ONE = (
    "differentiation.layers.torch",  # a layer is a function of its framework
    "differentiation.layers.jax",
    "backends.torch_group",
    "backends.torch_checks",
    "backends.torch_modules",
    "backends.torch_settings",
    "backends.jax_modules",
    "backends.jax_sharding",
)


def test_only_backends_import_a_framework(subtests):
    for module in FILES:
        with subtests.test(module):
            parts = [name.split(".") for name in imports(module)]
            found = {name for name, *_ in parts} & set(FRAMEWORKS)
            concrete = [
                x for x in parts if x[0] == "array_api_compat" and x[1:2] in (["numpy"], ["torch"], ["cupy"], ["dask"])
            ]
            if module in OF_A_FRAMEWORK:
                assert found <= OF_A_FRAMEWORK[module]
            elif module in MADE_FOR_ONE:
                assert found == {module.rpartition(".")[2].partition("_")[0]}
            else:
                assert not found
                assert not concrete


def test_only_backends_ask_which_backend_it_is(subtests):
    """`if backend.name == ...` belongs to the backends: what differs is a member of the protocol."""
    for module in FILES:
        if top(module) in ("backends", "cli") or "layers" in module:
            continue
        source = FILES[module].read_text()
        if not any(f'"{name}"' in source for name in NAMES):
            continue
        with subtests.test(module):
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.Compare) and "\"'" not in (text := ast.unparse(node)):
                    assert not any(f"'{name}'" in text for name in NAMES), text


# modules of the package after its import, and after a solve: the numbers may only fall
MODULES = {"import": 89, "solve": 124}
WINGS = (
    "statistics",
    "bayes",
    "components",
    "differentiation",
    "batch",
    "distributed",
    "sklearn",
    "cli",
    "conformance",
)

FRESH = """
import json, sys

seen = {}
import xvarpro as xv
seen["import"] = sorted(sys.modules)
[xv.backends.installed(name) for name in xv.backends.known()]
seen["names of backends"] = sorted(sys.modules)
import numpy as np
M = lambda theta, data: xv.array_namespace(theta).exp(-xv.array_namespace(theta).expand_dims(data, axis=1) * theta)
t = np.linspace(0.0, 1.0, 20)
fit = xv.solve(xv.separable(M, np.exp(-t), data=t), np.array([2.0]), over=xv.sets.Box(0.0, 5.0))
seen["solve"] = sorted(sys.modules)
str(fit), fit.w
seen["report"] = sorted(sys.modules)
for name in sys.argv[1:]:
    fit.plot() if name == "plot" else xv.backends.get(name)
    seen[name] = sorted(sys.modules)
print(json.dumps(seen))
"""


def fresh(*names):
    """Modules that a new process has loaded after each of its steps; the last ones are named: backends, or a plot."""
    done = subprocess.run([sys.executable, "-c", FRESH, *names], capture_output=True, text=True, check=True)
    return {step: set(found) for step, found in json.loads(done.stdout).items()}


def test_a_fresh_process_loads_what_it_uses():
    seen = fresh("array-api-strict", "plot")
    for step in ("import", "names of backends", "solve", "report"):
        assert not seen[step] & set(ON_DEMAND), step
    for step, most in MODULES.items():
        own = {name for name in seen[step] if name.split(".")[0] == "xvarpro"}
        assert len(own) <= most, step
        assert not {name.split(".")[1] for name in own if "." in name} & set(WINGS), step
    assert seen["array-api-strict"] & set(FRAMEWORKS) == {"array_api_strict"}
    assert "matplotlib" in seen["plot"]
    assert "matplotlib.pyplot" not in seen["plot"]


@pytest.mark.frameworks
@pytest.mark.parametrize(("name", "packages"), [("torch", {"torch"}), ("jax", {"jax", "jaxlib"})])
def test_asking_for_one_backend_loads_that_one(name, packages):
    assert fresh(name)[name] & set(FRAMEWORKS) == packages


def test_every_public_name_exists():
    rooms = ("algorithms", "backends", "lower", "operators", "sets", "steps")
    for module in (xvarpro, *(getattr(xvarpro, room) for room in rooms)):
        assert sorted(set(module.__all__)) == sorted(module.__all__)
        assert all(hasattr(module, name) for name in module.__all__)
    assert dir(xvarpro) == sorted(xvarpro.__all__)


def test_public_modules_import_by_their_names():
    """As the same modules that attributes give, and that their own names do."""
    for name in ("steps", "many", "implicit", "layers", "layers.torch", "layers.jax"):
        found, own = import_module(f"xvarpro.{name}"), attrgetter(name)(xvarpro)
        assert found is own is sys.modules[found.__name__]
        assert found.__spec__.name == found.__name__


def test_at_most_four_modules_are_in_no_room():
    loose = {p.stem for p in ROOT.glob("*.py")}
    assert len(loose) <= 4, loose


def any_or_tree(annotation):
    return any(getattr(node, "id", getattr(node, "attr", "")) in ("Any", "Tree") for node in ast.walk(annotation))


def test_parameters_have_real_types():
    """At most 15 % of the annotated ones are of a type that holds anything."""
    taken = [
        a.annotation
        for module in FILES
        for f in statements(module)
        if isinstance(f, ast.FunctionDef)
        for a in (*f.args.posonlyargs, *f.args.args, *f.args.kwonlyargs, f.args.vararg, f.args.kwarg)
        if a is not None and a.annotation is not None
    ]
    assert sum(any_or_tree(a) for a in taken) <= 0.15 * len(taken)


def test_words_are_those_of_the_field(subtests):
    private = re.compile(r"\b(told|judged?s?|judging|beside|nobody|whoever|lest|dear|owes)\b", re.IGNORECASE)
    for module, path in FILES.items():
        with subtests.test(module):
            assert not private.findall(path.read_text())
