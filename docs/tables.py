"""The pages sets.md, steps.md and algorithms.md, from the docstrings and the properties of the classes themselves.

``python docs/tables.py`` writes all below the line `MARK` of a page; ``--check`` writes nothing and fails if one is
stale. A class is on its page because its package exports it; the first lines of its docstring's Notes,
``Name : text``, are its row.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from xvarpro import algorithms, sets, steps
from xvarpro.algorithms._conditional_gradient import Blocks
from xvarpro.algorithms._corrective import Correction
from xvarpro.algorithms.stochastic import Estimator
from xvarpro.algorithms.updates import Update
from xvarpro.objective.mini_batch import LowerRows

HERE = Path(__file__).parent
MARK = "<!-- Generated below by docs/tables.py from the docstrings. -->"


class Kind(NamedTuple):
    """What one table holds."""

    title: str
    label: str  # of the first column
    of: tuple[type, ...]  # seams and classes; a class is in the first table whose `of` it derives from
    fields: tuple[str, ...]  # columns from the docstring
    intro: str = ""
    derived: tuple[tuple[str, Callable[[type], str]], ...] = ()  # columns from the code


class Page(NamedTuple):
    """One file."""

    modules: tuple[tuple[str, ModuleType], ...]  # prefix of the headings, and what exports the classes
    kinds: tuple[Kind, ...]


# -- what the code knows ----------------------------------------------------------------------------------------------


def depends(cls: type, name: str) -> bool | None:
    """A property of a class: True or False where it is one of the class, None where it depends on its arguments."""
    found = inspect.getattr_static(cls, name)
    if not isinstance(found, property):
        return bool(found)
    seam: Any = next(base for base in reversed(cls.__mro__) if name in vars(base))
    # the seam's own properties look at the class alone, and no argument gives a class a method that it lacks
    own = bool(vars(seam)[name].fget(object.__new__(cls)))
    return own if vars(seam)[name] is found or (name.startswith("has_") and not own) else None


def nature(cls: type) -> str:
    """What a set acts on and its properties, a letter each; in brackets those that depend on its arguments."""
    ndim = inspect.getattr_static(cls, "event_ndim")
    if isinstance(ndim, property):
        on = "vectors" if vars(sets.Set)["event_ndim"] is ndim else "varies"
    else:
        on = ("entries", "vectors", "matrices")[ndim]
    known = {
        "P": depends(cls, "polytope"),
        "F": depends(cls, "has_faces"),
        "C": depends(cls, "takes_complex"),
        "H": _negated(depends(cls, "compiles")),
    }
    varies = " ".join(key for key, has in known.items() if has is None)
    return " ".join([on, *(key for key, has in known.items() if has), *([f"({varies})"] if varies else [])])


def _negated(has: bool | None) -> bool | None:
    return None if has is None else not has


# -- docstrings -------------------------------------------------------------------------------------------------------


def sections(cls: Any) -> dict[str, str]:
    """The docstring by its numpydoc sections; what comes before the first is called Summary."""
    lines = (inspect.cleandoc(cls.__doc__ or "") + "\n").split("\n")
    out: dict[str, list[str]] = {"Summary": []}
    name = "Summary"
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if line and set(below) == {"-"}:
            name = line
            out[name] = []
        elif not (line and set(line) == {"-"}):
            out[name].append(line)
    return {key: "\n".join(text).strip("\n") for key, text in out.items()}


def notes(cls: Any) -> tuple[dict[str, str], str]:
    """The fields at the head of the Notes, and the prose below them."""
    text = sections(cls).get("Notes", "")
    head, _, prose = text.partition("\n\n")
    found: dict[str, str] = {}
    for line in head.split("\n"):
        match = re.fullmatch(r"([A-Z][A-Za-z ]*) : (\S.*)", line)
        if match:
            found[match[1]] = match[2]
        elif found and line.startswith("    "):
            found[list(found)[-1]] += " " + line.strip()
        else:
            return {}, text
    return found, prose


def exported(page: Page) -> Iterator[tuple[str, Any]]:
    """Heading and object of everything on a page, in the order of ``__all__``."""
    for prefix, module in page.modules:
        names = getattr(module, "__all__", None) or _own(module)
        for name in names:
            obj = getattr(module, name)
            if callable(obj) and not inspect.isabstract(obj):
                yield prefix + name, obj


def _own(module: ModuleType) -> list[str]:
    own = [(name, obj) for name, obj in vars(module).items() if getattr(obj, "__module__", "") == module.__name__]
    return [name for name, obj in own if isinstance(obj, type) and not name.startswith("_")]


def kind_of(page: Page, obj: Any) -> Kind | None:
    """The table that a class belongs in; None for functions, and for what no table holds."""
    if not isinstance(obj, type):
        return None
    return next((kind for kind in page.kinds if issubclass(obj, kind.of)), None)


# -- Markdown ---------------------------------------------------------------------------------------------------------


def anchor(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def markdown(text: str, at: str, own: str = "") -> str:
    """A docstring's text: code stays code, names of documented classes become links, the rest is no markup."""

    def span(match: re.Match[str]) -> str:
        code, name = match[1], match[2]
        if code is not None:
            return f"`{code}`"
        target = targets().get(name.rpartition(".")[2])
        if target is None or target[1] == own:
            return f"`{name}`"
        return f"[`{name}`]({'' if target[0] == at else target[0]}#{anchor(target[1])})"

    out, last = [], 0
    for match in re.finditer(r"``(.+?)``|`([^`]+)`", " ".join(text.split())):
        out += [_plain(match.string[last : match.start()]), span(match)]
        last = match.end()
    return "".join(out) + _plain(" ".join(text.split())[last:])


def _plain(text: str) -> str:
    return re.sub(r"([*_]|<(?=[A-Za-z/!]))", r"\\\1", text)


def targets() -> dict[str, tuple[str, str]]:
    """Name -> page and heading, of everything that has a section."""
    return {h.rpartition(".")[2]: (file, h) for file, page in PAGES.items() for h, _ in exported(page)}


def row(cells: list[str]) -> str:
    """A row of a table."""
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def signature(obj: Any) -> str:
    """The call, with defaults that are numbers or names."""
    called = obj.__name__
    if dataclasses.is_dataclass(obj):
        parts = []
        for field in dataclasses.fields(obj):
            if field.init:
                given = field.default is not dataclasses.MISSING
                made = field.default_factory is not dataclasses.MISSING
                parts.append(
                    f"{field.name}={field.default!r}" if given else f"{field.name}=..." if made else field.name
                )
        return f"{called}({', '.join(parts)})"
    names = [
        name if p.default is p.empty else f"{name}={p.default!r}"
        for name, p in inspect.signature(obj).parameters.items()
    ]
    return f"{called}({', '.join(names)})"


def items(text: str, at: str, own: str) -> list[str]:
    """Parameters, or what is laid out like them, as a list."""
    out: list[tuple[str, str, list[str]]] = []
    for line in text.split("\n"):
        if line and not line.startswith(" "):
            name, _, kind = line.partition(" : ")
            out.append((name, kind, []))
        elif line.strip():
            out[-1][2].append(line)
    rows = []
    for name, kind, lines in out:
        # what a function returns is a type without a name
        names = [part if part.startswith("or ") else f"`{part}`" for part in name.split(", ")]
        label = ", ".join(names)
        says = markdown(" ".join(lines), at, own)
        rows.append(f"- {label}" + (f" ({markdown(kind, at, own)})" if kind else "") + (f": {says}" if says else ""))
    return rows


def section(heading: str, obj: Any, at: str) -> list[str]:
    """What a page says of one class or function."""
    doc = sections(obj)
    prefix = "xv." + at.removesuffix(".md") + "." + heading.rpartition(".")[0]
    out = [f"### {heading}", "", f"`{prefix.rstrip('.')}.{signature(obj)}`", ""]
    out += prose(doc["Summary"], at, heading)
    for name in ("Parameters", "Returns", "Raises"):
        if name in doc:
            out += [f"{name}:", "", *items(doc[name], at, heading), ""]
    out += prose(notes(obj)[1], at, heading)
    if "References" in doc:
        out += ["Source: " + markdown(doc["References"], at, heading), ""]
    return [*out, "```pycon", doc["Examples"], "```", ""]


def prose(text: str, at: str, own: str) -> list[str]:
    """Paragraphs and lists of a docstring."""
    out = []
    for part in filter(None, text.split("\n\n")):
        entries = re.split(r"(?m)^- ", part)
        lead = [markdown(entries[0], at, own)] if entries[0] else []
        out += [*lead, *(f"- {markdown(entry, at, own)}" for entry in entries[1:]), ""]
    return out


def render(file: str) -> str:
    """The text of a page."""
    page = PAGES[file]
    all_of_it = list(exported(page))
    head, mark, _ = (HERE / file).read_text(encoding="utf-8").partition(MARK)
    if not mark:
        raise SystemExit(f"docs/{file} needs the line {MARK}")
    out = [head + mark, ""]
    for kind in page.kinds:
        members = [(heading, obj) for heading, obj in all_of_it if kind_of(page, obj) is kind]
        columns = [kind.label, *kind.fields, *(name for name, _ in kind.derived)]
        out += [f"## {kind.title}", "", *([kind.intro.strip(), ""] if kind.intro else [])]
        out += [row(columns), row(["---"] * len(columns))]
        for heading, obj in members:
            found, _ = notes(obj)
            cells = [markdown(found.get(name, ""), file, heading) for name in kind.fields]
            out.append(row([f"[{heading}](#{anchor(heading)})", *cells, *(fun(obj) for _, fun in kind.derived)]))
        out.append("")
    functions = [(heading, obj) for heading, obj in all_of_it if inspect.isfunction(obj)]
    if functions:
        out += ["## Functions", "", row(["Function", "Makes"]), row(["---", "---"])]
        for heading, obj in functions:
            first = sections(obj)["Summary"].split("\n\n")[0]
            out.append(row([f"[{heading}](#{anchor(heading)})", markdown(first, file, heading)]))
        out.append("")
    out += ["## One by one", ""]
    for heading, obj in all_of_it:
        if inspect.isfunction(obj) or kind_of(page, obj) is not None:
            out += section(heading, obj, file)
    return "\n".join(out).rstrip("\n") + "\n"


# -- the pages --------------------------------------------------------------------------------------------------------

SET_TABLE = """
The last column has letters, in brackets where they depend on the arguments:

- **P**: the set is a polytope.
- **F**: the set describes its [faces](glossary.md#face), which [`InFaceFrankWolfe`](algorithms.md#infacefrankwolfe) and
  [`ProjectedQuasiNewton`](algorithms.md#projectedquasinewton) use.
- **C**: it takes complex points.
- **H**: its [LMO](glossary.md#lmo) runs on the host and not inside a compiled loop.

In the column LMO, what follows the semicolon says which point is taken on a tie, or for a gradient of 0.
"""

NORMS = """
A free leaf, which no set constrains, moves by `-radius u` with `<g, u> = |g|_*`. The norm determines u, and radius
times the dual norm of the gradient is this block's part of the [gap](glossary.md#gap).
"""

CORRECTIONS = """
The iterate x is a mixture of atoms, or of the vertices of its face. In the table v is the vertex that the LMO finds,
a the worst and s the best of the atoms of x.
"""

PAGES: dict[str, Page] = {
    "sets.md": Page(
        (("", sets), ("norms.", sets.norms)),
        (
            Kind(
                "All sets",
                "Set",
                (sets.Set,),
                ("LMO", "Cost", "Diameter", "Projection"),
                SET_TABLE,
                (("On, letters", nature),),
            ),
            Kind(
                "Free blocks", "Block or norm", (sets.Free, sets.norms.Norm), ("Dual norm", "Direction", "Cost"), NORMS
            ),
            Kind("Large matrix sets", "Solver", (sets.Lanczos,), ("Finds", "Cost", "When")),
        ),
    ),
    "steps.md": Page(
        (("", steps),),
        (Kind("All rules", "Rule", (steps.StepRule,), ("Formula", "Evaluations", "Monotone", "Needs", "When")),),
    ),
    "algorithms.md": Page(
        (("", algorithms),),
        (
            Kind(
                "All algorithms",
                "Algorithm",
                (algorithms.Algorithm,),
                ("Oracle", "Per iteration", "Memory", "Polytope only", "When"),
            ),
            Kind(
                "How blocks step",
                "Blocks",
                (Blocks,),
                ("Searches", "Per iteration", "When"),
                "`blocks=` of `FrankWolfe`; the methods with corrections take the first two.",
            ),
            Kind("Corrections", "Correction", (Correction,), ("Direction", "When"), CORRECTIONS),
            Kind(
                "Estimators",
                "Estimator",
                (Estimator,),
                ("Estimate", "Per iteration", "When"),
                "How the gradients of mini-batches become the gradient of a step.",
            ),
            Kind(
                "Update rules",
                "Update",
                (Update,),
                ("Step", "Memory", "When"),
                "How `StochasticProjectedGradient` turns g, the gradient of the mean over the terms, into a step.",
            ),
            Kind(
                "What determines w",
                "Rows",
                (LowerRows,),
                ("Gradient", "Rows", "When"),
                "For a mini-batch of b rows of a separable problem with n unknowns in w; see [Mini-batches]"
                "(minibatches.md).",
            ),
        ),
    ),
}


def main(arguments: list[str] | None = None) -> int:
    """Write the pages, or say which are stale."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, fail if a page is stale")
    check = parser.parse_args(arguments).check
    stale = []
    for file in PAGES:
        text, path = render(file), HERE / file
        if path.read_text(encoding="utf-8") != text:
            stale.append(file)
            if not check:
                path.write_text(text, encoding="utf-8")
    if stale:
        print(("stale: " if check else "written: ") + ", ".join(stale))
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
