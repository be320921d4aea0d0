"""Single faults in Python text: every place where one can be planted, and the text with one of them in it."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import NamedTuple

COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
PAIRS = (
    ("min", "max"), ("minimum", "maximum"), ("argmin", "argmax"), ("any", "all"), ("zeros", "ones"), ("sum", "mean"),
    ("zeros_like", "ones_like"), ("tril", "triu"), ("floor", "ceil"), ("real", "imag"), ("sin", "cos"),
)  # fmt: skip
OTHERS = {**dict(PAIRS), **{b: a for a, b in PAIRS}}
# calls that can be left out: the argument has the shape of what they return
UNARY = {"conj", "adjoint", "transpose", "abs", "sqrt", "sign", "square", "copy", "clone", "detach", "resolve_conj"}
KEYWORDS = {
    "dtype", "device", "copy", "keepdims", "transpose", "lower", "upper", "correction", "stable", "initial", "axis",
}  # fmt: skip
SMALL, LARGE = 1 + 1e-6, 10.0  # factors on numbers, and on tolerances, which no result is proportional to
# words, and what the suite is given
LEFT_OUT = {"__repr__", "__str__", "describe", "describe_mkl", "describe_instructions", "examples"}
LEFT_OUT |= {"array_fixtures", "settings", "modes", "impure", "cubes", "hollow", "undetermined", "survives_fork"}


class Mutant(NamedTuple):
    """One fault.

    Attributes
    ----------
    kind : str
    node, choice : int
        Its place: the number of the node in the walk, and of the replacement among those of the node.
    first, last : int
        The lines of its statement; of a compound one, those of the header.
    runs : bool
        Whether these lines belong to a function: what is outside of one runs when the module is imported.
    """

    kind: str
    node: int
    choice: int
    first: int
    last: int
    runs: bool


def mutants(source: str) -> list[Mutant]:
    r"""Every fault that can be planted in a module.

    Examples
    --------
    >>> [m.kind for m in mutants("def f(x):\n    return x < 2")]
    ['comparison', 'constant']
    """
    found = []
    for i, (node, statement, function) in enumerate(_walk(ast.parse(source))):
        body = getattr(statement, "body", None)
        last = statement.end_lineno if not isinstance(body, list) else max(statement.lineno, body[0].lineno - 1)
        for j, (kind, _) in enumerate(_replacements(node, function)):
            found.append(Mutant(kind, i, j, statement.lineno, last, function is not None))
    return found


def planted(source: str, mutant: Mutant) -> tuple[str, str, str]:
    r"""The module with the fault in it, the line that differs as it was, and as it is; comments are lost.

    Examples
    --------
    >>> text = "def f(x):\n    return x < 2"
    >>> planted(text, mutants(text)[0])
    ('def f(x):\n    return x <= 2', 'return x < 2', 'return x <= 2')
    """
    tree = ast.parse(source)
    node, _, function = list(_walk(tree))[mutant.node]
    new = list(_replacements(node, function))[mutant.choice][1]
    before = ast.unparse(tree).splitlines()
    after = ast.unparse(_Put(node, new).visit(tree))
    lines = after.splitlines()
    at = next(i for i, (a, b) in enumerate(zip(before, lines, strict=False)) if a != b)
    return after, before[at].strip(), lines[at].strip()


class _Put(ast.NodeTransformer):
    """Replaces one node."""

    def __init__(self, node: ast.AST, new: ast.AST) -> None:
        self.node, self.new = node, new

    def visit(self, node: ast.AST) -> ast.AST:
        return ast.copy_location(self.new, node) if node is self.node else self.generic_visit(node)


Place = tuple[ast.AST, ast.stmt, ast.AST | None]


def _walk(node: ast.AST, statement: ast.stmt | None = None, function: ast.AST | None = None) -> Iterator[Place]:
    """Nodes with their statement and their function, without annotations and what `_words` names."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        inside = node if isinstance(node, ast.FunctionDef | ast.Lambda) and name == "body" else function
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or _words(child):
                continue
            where = child if isinstance(child, ast.stmt) else statement
            if where is not None:
                yield child, where, inside
            if not isinstance(child, ast.Raise | ast.JoinedStr | ast.Assert):
                yield from _walk(child, where, inside)


def _words(node: ast.AST) -> bool:
    """Whether a node is there for readers, type checkers or the suite."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0]) == "__all__"
    if isinstance(node, ast.Call):
        return ast.unparse(node.func) in ("dataclass", "cast", "warnings.warn")
    return isinstance(node, ast.FunctionDef) and node.name in LEFT_OUT


def _replacements(node: ast.AST, function: ast.AST | None) -> Iterator[tuple[str, ast.AST]]:
    """What may stand in the place of a node, with the kind of fault that it is."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield "comparison", _changed(node, ops=[COMPARISONS[type(node.ops[0])]()])
    elif isinstance(node, ast.BinOp):
        yield from _arithmetic(node)
    elif isinstance(node, ast.UnaryOp):
        yield "negation", node.operand
    elif isinstance(node, ast.BoolOp):
        yield "boolean", _changed(node, op=ast.And() if isinstance(node.op, ast.Or) else ast.Or())
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        yield "condition", _changed(node, test=ast.UnaryOp(ast.Not(), node.test))
    elif isinstance(node, ast.Constant):
        yield from (("constant", ast.Constant(x)) for x in _numbers(node.value))
    elif isinstance(node, ast.Call):
        yield from _calls(node)
    elif isinstance(node, ast.Attribute) and node.attr in ("mT", "mH", "T"):
        yield "transposed", node.value
    elif isinstance(node, ast.Return) and isinstance(node.value, ast.Call):
        names = [x for x in node.value.args if isinstance(x, ast.Name) and x.id not in ("xp", "self")]
        if names:
            yield "argument returned", ast.Return(names[0])
    elif _removable(node, function):
        yield "statement removed", ast.Pass()


def _arithmetic(node: ast.BinOp) -> Iterator[tuple[str, ast.AST]]:
    words = isinstance(node.left, ast.JoinedStr) or isinstance(getattr(node.left, "value", None), str)
    if type(node.op) in ARITHMETIC and not words:
        yield "arithmetic", _changed(node, op=ARITHMETIC[type(node.op)]())
    # a multiple of 0 is 0, and of an estimate of rounding the first digit is a choice
    zero = any(isinstance(x, ast.Constant) and x.value == 0 for x in (node.left, node.right))
    if isinstance(node.op, ast.Mult | ast.MatMult | ast.Div) and not zero and "eps" not in ast.unparse(node):
        yield "factor", ast.BinOp(node, ast.Mult(), ast.Constant(SMALL))
    if isinstance(node.op, ast.Add | ast.Sub) and not words:
        yield "term", node.left


def _numbers(x: object) -> list[object]:
    if isinstance(x, bool):
        return [not x]
    if isinstance(x, int):
        return [x + 1, 0] if x == 1 else [x + 1]
    if isinstance(x, float) and abs(x) < float("inf"):
        return [1.0] if x == 0 else [x * (SMALL if 1e-2 <= abs(x) <= 1e2 else LARGE)]
    return []


def _calls(node: ast.Call) -> Iterator[tuple[str, ast.AST]]:
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if name == "where" and len(node.args) == 3:
        condition, a, b = node.args
        yield "branches swapped", _changed(node, args=[condition, b, a])
    if name in UNARY and not node.keywords:
        inner = node.args[-1] if node.args else getattr(node.func, "value", None)
        if inner is not None:
            yield "call dropped", inner
            if name == "adjoint":
                yield "conjugate dropped", ast.Attribute(inner, "mT", ast.Load())
    if name in OTHERS:
        func = copy.deepcopy(node.func)
        setattr(func, "attr" if isinstance(func, ast.Attribute) else "id", OTHERS[name])
        yield "another function", _changed(node, func=func)
    for k in node.keywords:
        if k.arg in KEYWORDS:
            yield "keyword dropped", _changed(node, keywords=[x for x in node.keywords if x is not k])
        if k.arg == "axis" and ast.unparse(k.value) in ("0", "1", "-1", "-2"):
            other = {"0": -1, "1": 0, "-1": -2, "-2": -1}[ast.unparse(k.value)]
            moved = ast.keyword("axis", ast.Constant(other))
            yield "axis", _changed(node, keywords=[moved if x is k else x for x in node.keywords])


def _removable(node: ast.AST, function: ast.AST | None) -> bool:
    """Whether a statement can go without a name being undefined after it."""
    if isinstance(node, ast.Assign):
        target = node.targets[0]
        return isinstance(target, ast.Attribute | ast.Subscript) or (
            isinstance(target, ast.Name) and _known(function, target.id, node.lineno)
        )
    called = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    return called or isinstance(node, ast.AugAssign | ast.Raise | ast.Break | ast.Continue)


def _known(function: ast.AST | None, name: str, line: int) -> bool:
    """Whether a function has that argument, or gives the name a value above the line."""
    if function is None:
        return False
    stored = (x for x in ast.walk(function) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store))
    given = (x.arg for x in ast.walk(function.args) if isinstance(x, ast.arg))
    return name in given or any(x.id == name and x.lineno < line for x in stored)


def _changed(node: ast.AST, **fields: object) -> ast.AST:
    """A copy with other fields."""
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new
