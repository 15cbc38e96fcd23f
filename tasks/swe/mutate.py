"""Planting bugs: small changes to Python source that compile and mean something else.

Each operator looks at one node of the syntax tree and proposes edits of the text, so that a mutated file keeps its
formatting and comments. The idea of planting bugs by operators and keeping those that tests catch is that of SWE-smith
(Yang et al. 2025); the operators here are the classical ones of mutation testing.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace source[start:end] (characters), which is `old`, by `new`."""

    operator: str
    start: int
    end: int
    old: str
    new: str

    def apply(self, source: str) -> str:
        """The changed source. Raises ValueError where it does not hold `old`."""
        if source[self.start : self.end] != self.old:
            found = source[self.start : self.end]
            raise ValueError(f"the source has {found!r} at {self.start}, not {self.old!r}")
        return source[: self.start] + self.new + source[self.end :]


Operator = Callable[["Source", ast.AST], Iterator[tuple[ast.AST, str]]]


class Source:
    """One module: its text, its syntax tree, and where nodes are in the text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def span(self, node: ast.AST) -> tuple[int, int]:
        """The characters of a node."""
        assert isinstance(node, ast.expr | ast.stmt | ast.arg)
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._place(node.lineno, node.col_offset), self._place(node.end_lineno, node.end_col_offset)

    def of(self, node: ast.AST) -> str:
        """The text of a node."""
        start, end = self.span(node)
        return self.text[start:end]

    def _place(self, line: int, column_bytes: int) -> int:
        before = self._lines[line - 1].encode()[:column_bytes].decode()
        return self._starts[line - 1] + len(before)


def edits(text: str) -> list[Edit]:
    """All edits that change what a module means, in the order of the text. Raises SyntaxError."""
    source = Source(text)
    found = [edit for node in ast.walk(source.tree) for edit in _edits(source, node)]
    original = ast.dump(source.tree)
    unique = {(e.start, e.end, e.new): e for e in found if _is_change(e, text, original)}
    return sorted(unique.values(), key=lambda e: (e.start, e.end, e.operator, e.new))


def _edits(source: Source, node: ast.AST) -> Iterator[Edit]:
    for name, operator in OPERATORS.items():
        for target, new in operator(source, node):
            start, end = source.span(target)
            yield Edit(name, start, end, source.text[start:end], new)


def _is_change(edit: Edit, text: str, original: str) -> bool:
    try:
        return ast.dump(ast.parse(edit.apply(text))) != original
    except SyntaxError:
        return False


COMPARISONS: dict[type[ast.cmpop], tuple[str, ...]] = {
    ast.Lt: ("<=", ">"),
    ast.LtE: ("<", ">="),
    ast.Gt: (">=", "<"),
    ast.GtE: (">", "<="),
    ast.Eq: ("!=",),
    ast.NotEq: ("==",),
    ast.In: ("not in",),
    ast.NotIn: ("in",),
    ast.Is: ("is not",),
    ast.IsNot: ("is",),
}
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.Div: ("/", "//"),
    ast.FloorDiv: ("//", "/"),
    ast.Mod: ("%", "//"),
    ast.Pow: ("**", "*"),
}


def flip_comparison(source: Source, node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """a < b becomes a <= b and a > b; == becomes !=, in becomes not in."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = source.of(node.left), source.of(node.comparators[0])
        for sign in COMPARISONS[type(node.ops[0])]:
            yield node, f"{left} {sign} {right}"


def change_arithmetic(source: Source, node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """a + b becomes a - b, a * b becomes a + b, and so on."""
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        _, new = ARITHMETIC[type(node.op)]
        yield node, f"{_operand(source, node.left)} {new} {_operand(source, node.right)}"


def change_update(source: Source, node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """a += b becomes a -= b and a = b."""
    if isinstance(node, ast.AugAssign) and type(node.op) in ARITHMETIC:
        target, value = source.of(node.target), source.of(node.value)
        yield node, f"{target} {ARITHMETIC[type(node.op)][1]}= {value}"
        yield node, f"{target} = {value}"


def off_by_one(source: Source, node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """An integer n becomes n + 1; one above 0 also n - 1."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield node, str(node.value + 1)
        if node.value > 0:
            yield node, str(node.value - 1)


def negate_condition(source: Source, node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """if a becomes if not (a); also of while loops, conditional expressions and comprehensions."""
    tests: list[ast.expr] = []
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        tests = [node.test]
    elif isinstance(node, ast.comprehension):
        tests = node.ifs
    for test in tests:
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            yield test, source.of(test.operand)
        else:
            yield test, f"not ({source.of(test)})"


def swap_logic(source: Source, node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """a and b becomes a or b, and the other way round."""
    if isinstance(node, ast.BoolOp):
        sign = " or " if isinstance(node.op, ast.And) else " and "
        yield node, sign.join(_operand(source, value) for value in node.values)


def swap_arguments(source: Source, node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """f(a, b) becomes f(b, a)."""
    if isinstance(node, ast.Call) and len(node.args) == 2 and not _starred(node.args):
        first, second = (source.of(a) for a in node.args)
        named = ((f"{k.arg}=" if k.arg else "**") + source.of(k.value) for k in node.keywords)
        yield node, f"{source.of(node.func)}({', '.join((second, first, *named))})"


def drop_branch(source: Source, node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """An if without an else disappears."""
    if isinstance(node, ast.If) and not node.orelse and not _binds(node):
        yield node, "pass"


def drop_statement(source: Source, node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """A call for its effect, an update, a raise or an assignment to a part of something disappears."""
    effect = isinstance(node, ast.AugAssign | ast.Raise | ast.Delete | ast.Continue | ast.Break)
    call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    part = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript | ast.Attribute)
    if effect or call or part:
        yield node, "pass"


def remove_return(source: Source, node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """return a becomes return None."""
    if isinstance(node, ast.Return) and node.value is not None:
        yield node, "return None"


def wrong_default(source: Source, node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """A default that is true becomes false, a text empty, a number another one."""
    if isinstance(node, ast.arguments):
        for default in (*node.defaults, *node.kw_defaults):
            if isinstance(default, ast.Constant) and (new := _other(default.value)) is not None:
                yield default, new


def wrong_variable(source: Source, node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """A parameter that is read becomes the next parameter of the same function."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    names = [a.arg for a in (*node.args.posonlyargs, *node.args.args) if a.arg not in ("self", "cls")]
    if len(names) < 2:
        return
    following = dict(zip(names, names[1:] + names[:1], strict=True))
    for inner in (n for statement in node.body for n in ast.walk(statement)):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load) and inner.id in following:
            yield inner, following[inner.id]


def shift_slice(source: Source, node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """a[i:] becomes a[i + 1:], and a[:j] becomes a[:j - 1]."""
    if isinstance(node, ast.Slice):
        if node.lower is not None and not isinstance(node.lower, ast.Constant):
            yield node.lower, f"{_operand(source, node.lower)} + 1"
        if node.upper is not None and not isinstance(node.upper, ast.Constant):
            yield node.upper, f"{_operand(source, node.upper)} - 1"


OPERATORS: dict[str, Operator] = {
    f.__name__: f
    for f in (
        flip_comparison,
        change_arithmetic,
        change_update,
        off_by_one,
        negate_condition,
        swap_logic,
        swap_arguments,
        drop_branch,
        drop_statement,
        remove_return,
        wrong_default,
        wrong_variable,
        shift_slice,
    )
}
"""By name. An operator yields (node to replace, its new text)."""


def _operand(source: Source, node: ast.expr) -> str:
    """The text of an operand, in parentheses where it has operators of its own."""
    text = source.of(node)
    return f"({text})" if isinstance(node, ast.BinOp | ast.BoolOp | ast.IfExp | ast.Compare) else text


def _starred(arguments: list[ast.expr]) -> bool:
    return any(isinstance(a, ast.Starred) for a in arguments)


def _binds(node: ast.If) -> bool:
    """Whether it defines functions or classes, or imports: dropping it breaks more than a branch."""
    kinds = ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom
    return any(isinstance(inner, kinds) for inner in ast.walk(node))


def _other(value: object) -> str | None:
    if isinstance(value, bool):
        return str(not value)
    if isinstance(value, int):
        return str(value + 1)
    return repr("") if isinstance(value, str) and value else None
