"""Small errors in a module's arithmetic, one at a time: what `mutation_sweep` plants."""

import ast
import copy
import importlib
import itertools
import pathlib
import re
import types
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.And: ast.Or, ast.Or: ast.And,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
}  # fmt: skip
PAIRS = "sum mean, min max, minimum maximum, argmin argmax, nanmin nanmax, any all, floor ceil, log1p log, expm1 exp"
OTHER_NAME = {a: b for pair in PAIRS.split(", ") for a, b in (pair.split(), pair.split()[::-1])}
DROPPED = set("sqrt square abs absolute log exp sign conj conjugate cumsum swapaxes transpose matrix_transpose".split())
LIBRARIES = set("np math tf scipy special linalg ops".split())
SKIPPED = (ast.Raise, ast.Assert, ast.JoinedStr, ast.arguments, ast.Import, ast.ImportFrom)
EMPTY = re.compile(r"(zeros|empty)(_like)?\(")
TRUTH = re.compile(r"(all|any|bool|isinstance)\(|os\.path\.(isdir|isfile|exists)\(")  # two times which is as true
# What only decides how much is computed at a time.
SPEED = re.compile(
    r"_PANEL\b|_BYTES|^(_PIECES|_TASKS|_BLOCK|COLUMNS|_?AHEAD|_THREADS|STEPS_PER_GRAM|\w*_AT_ONCE|_?BATCH(_SIZE)?) = "
    r"|chunk =|per_row|rows_per_panel|for start in range\(|default_rng\(\d|ThreadPoolExecutor|cpu_count|time\.sleep\("
)
SKIPPED_FIELDS = ("decorator_list", "annotation", "returns")
SKIPPED_ARGUMENTS = set("dtype seed initial copy check_finite optimize".split())
# What only decides how soon a line is shown, or how fast something runs.
SKIPPED_ARGUMENTS |= set("flush refresh mininterval delay dynamic_ncols".split())
SKIPPED_ARGUMENTS |= set("parallel_iterations num_parallel_calls reduce_retracing".split())
# In a comparison without one of these two floats are compared, which are never equal: < and ≤ are the same.
WHOLE = re.compile(r"\b(len|num_\w+|\w*size|ndim|shape|\w*counts?|order|\w*depth|width|\w*rank|layer|dim|\d+)\b")
FLOAT = re.compile(r"\d\.\d|\de[-\d]|epsilon|eps\b|rounding|tolerance|tiny", re.IGNORECASE)


class Mutant(NamedTuple):
    """One error in one definition of a module: `plant` writes it into a process that has imported the module."""

    module: str
    definition: tuple[str, ...]  # (function,), (class, method) or (constant,)
    lines: range
    text: str  # line of source: before → after
    tree: ast.stmt  # of the definition
    place: tuple[ast.AST, str, int | None]
    node: ast.AST

    @property
    def key(self) -> str:
        """What the list of equivalents and the reports call it."""
        return f"{self.module}:{'.'.join(self.definition)}: {self.text}"

    @property
    def file(self) -> pathlib.Path:
        """The file of the module."""
        path = pathlib.Path(__file__).parents[1].joinpath(*self.module.split("."))
        return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")

    def written(self, source: bytes) -> bytes:
        """The module's source with the error in it, every other line as it is."""
        parent, field, index = self.place
        right = getattr(parent, field) if index is None else getattr(parent, field)[index]
        lines = source.splitlines(keepends=True)  # columns are counted in bytes
        start = sum(map(len, lines[: right.lineno - 1])) + right.col_offset
        end = sum(map(len, lines[: right.end_lineno - 1])) + right.end_col_offset
        broken = ast.unparse(ast.fix_missing_locations(self.node))
        broken = f"({broken})" if isinstance(self.node, ast.expr) else broken
        return source[:start] + broken.encode() + source[end:]

    def plant(self) -> None:
        """Puts the broken definition in the place of the right one, wherever it has been imported to."""
        parent, field, index = self.place
        if index is None:
            setattr(parent, field, self.node)
        else:
            getattr(parent, field)[index] = self.node
        module = importlib.import_module(self.module)
        if isinstance(self.tree, ast.FunctionDef):
            self.tree.decorator_list = []
        scope = dict(vars(module))
        exec(compile(ast.fix_missing_locations(ast.Module([self.tree], [])), module.__file__, "exec"), scope)
        broken, right = scope[self.definition[-1]], vars(module)[self.definition[0]]
        if isinstance(self.tree, ast.FunctionDef):
            function = undecorated(vars(right)[self.definition[1]] if len(self.definition) > 1 else right)
            function.__code__ = broken.__code__
            return
        for other in [other for other in importlib.sys.modules.values() if isinstance(other, types.ModuleType)]:
            if vars(other).get(self.definition[0]) is right:
                setattr(other, self.definition[0], broken)


def undecorated(found: object) -> types.FunctionType:
    """The function inside a cache, a property, a class method, a compiled function."""
    while not isinstance(found, types.FunctionType) or hasattr(found, "__wrapped__"):
        names = ("__wrapped__", "fget", "__func__", "func", "py_func", "python_function")
        found = next(getattr(found, name) for name in names if hasattr(found, name))
    return found


def mutants(path: pathlib.Path, module: str) -> list[Mutant]:
    """All mutants of a file; those of equal text are numbered."""
    source, seen, found = path.read_text(), Counter(), []
    for definition, tree in definitions(ast.parse(source)):
        for node, place, statement in places(tree):
            line = source.splitlines()[node.lineno - 1].strip()
            others = itertools.chain(replacements(node, place), flags_lost(node, module))
            for other in others if not SPEED.search(line) else ():
                if ast.dump(other) == ast.dump(node):
                    continue
                text = f"{line}: {ast.unparse(node)} → {ast.unparse(ast.fix_missing_locations(other))}"
                seen[definition, text] += 1
                text += f" #{seen[definition, text]}" if seen[definition, text] > 1 else ""
                where = range(statement.lineno, statement.end_lineno + 1)
                found.append(Mutant(module, definition, where, text, tree, place, other))
    return found


def definitions(tree: ast.Module) -> Iterator[tuple[tuple[str, ...], ast.stmt]]:
    """Functions, methods and constants of a module, by name."""
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef):
            yield (statement.name,), statement
        elif isinstance(statement, ast.ClassDef):
            yield from (((statement.name, f.name), f) for f in statement.body if isinstance(f, ast.FunctionDef))
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            yield (statement.targets[0].id,), statement


def places(tree: ast.AST, statement: ast.AST | None = None) -> Iterator[tuple[ast.AST, tuple, ast.AST]]:
    """Every node of a definition with its place, (parent, field, index), and the lines that run when it does."""
    simple = isinstance(tree, ast.stmt) and not hasattr(tree, "body")
    statement = tree if simple else statement
    for field, value in ast.iter_fields(tree):
        if field in SKIPPED_FIELDS or isinstance(tree, ast.keyword) and tree.arg in SKIPPED_ARGUMENTS:
            continue
        for index, child in enumerate(value) if isinstance(value, list) else ((None, value),):
            if isinstance(tree, ast.Call) and getattr(tree.func, "attr", "") == "reshape" and is_minus_one(child):
                continue  # to NumPy −2 is as good
            if isinstance(child, ast.AST) and not isinstance(child, SKIPPED):
                if isinstance(child, ast.expr | ast.AugAssign):
                    yield child, (tree, field, index), statement or child
                yield from places(child, statement)


def is_minus_one(node: object) -> bool:
    """Whether a node is the number −1."""
    return isinstance(node, ast.AST) and ast.unparse(node) == "-1"


def flags_lost(node: ast.AST, module: str) -> Iterator[ast.AST]:
    """The forms of one node in which a setting has its default, or a launcher does not pass it on; each a copy."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "config":
        yield ast.parse(f"type(config)().{node.attr}", mode="eval").body
    if not module.startswith("launch"):
        return
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            if keyword.arg and "config" in ast.unparse(keyword.value):
                yield changed(node, keywords=[other for other in node.keywords if other is not keyword])
    if isinstance(node, ast.Dict | ast.Tuple) and len(elements := getattr(node, "elts", getattr(node, "keys", []))) > 1:
        for index, element in enumerate(elements):
            if isinstance(element, ast.Constant) and isinstance(element.value, str):
                fields = ("elts",) if isinstance(node, ast.Tuple) else ("keys", "values")
                yield changed(node, **{f: getattr(node, f)[:index] + getattr(node, f)[index + 1 :] for f in fields})


def replacements(node: ast.AST, place: tuple) -> Iterator[ast.AST]:
    """The wrong forms of one node; each a copy."""
    parent, field, _ = place
    operator = node.ops[0] if isinstance(node, ast.Compare) else getattr(node, "op", None)
    text = ast.unparse(node) if isinstance(node, ast.Compare) else "1"
    if type(operator) in OPERATORS and WHOLE.search(text) and not FLOAT.search(text):
        other = OPERATORS[type(operator)]()
        yield changed(node, **({"ops": [other, *node.ops[1:]]} if isinstance(node, ast.Compare) else {"op": other}))
    if isinstance(operator, ast.MatMult) and isinstance(node, ast.BinOp):
        yield changed(node, left=node.right, right=node.left)
    if isinstance(node, ast.UnaryOp):
        yield copy.deepcopy(node.operand)
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not 0 < node.value < 1e-290:
        yield ast.Constant(_other_number(node.value))
    if isinstance(node, ast.Attribute) and node.attr == "T":
        yield copy.deepcopy(node.value)
    if isinstance(node, ast.Call):
        yield from _other_calls(node)
    if isinstance(node, ast.Name) and node.id.startswith("num_") and isinstance(parent, ast.BinOp):
        yield ast.BinOp(ast.Name(node.id, ast.Load()), ast.Add(), ast.Constant(1))
    is_value = field == "value" and isinstance(parent, ast.Return | ast.Assign)
    is_mask = isinstance(operator, ast.BitAnd | ast.BitOr)
    is_same = (
        is_mask or EMPTY.search(ast.unparse(node)) or isinstance(node, ast.Call) and TRUTH.match(ast.unparse(node))
    )
    if is_value and isinstance(node, ast.BinOp | ast.Call) and not is_same:
        yield ast.BinOp(ast.Constant(2), ast.Mult(), copy.deepcopy(node))


def changed(node: ast.AST, **fields: object) -> ast.AST:
    """A copy of a node with other fields."""
    return copy.deepcopy(type(node)(**{**dict(ast.iter_fields(node)), **fields}))


def _other_number(value: float) -> float:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    return (1e6 if abs(value) < 1e-6 else 2) * value or 1.0


def _other_calls(node: ast.Call) -> Iterator[ast.AST]:
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    is_method = isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") not in LIBRARIES
    if name in OTHER_NAME and (isinstance(node.func, ast.Attribute) or name in ("min", "max", "any", "all")):
        renamed = {"attr": OTHER_NAME[name]} if isinstance(node.func, ast.Attribute) else {"id": OTHER_NAME[name]}
        yield changed(node, func=changed(node.func, **renamed))
    if name in DROPPED:
        yield copy.deepcopy(node.func.value if is_method and not isinstance(node.func, ast.Name) else node.args[0])
    if name == "len" and node.args:
        yield ast.BinOp(copy.deepcopy(node), ast.Add(), ast.Constant(1))


def of_modules(root: pathlib.Path, names: list[str]) -> list[Mutant]:
    """The mutants of the files below some paths, relative to root; see `mutation_sweep.OUT_OF_SCOPE`."""
    files = [sorted(path.rglob("*.py")) if (path := root / name).is_dir() else [path] for name in names]
    modules = [(file, ".".join(file.relative_to(root).with_suffix("").parts)) for file in itertools.chain(*files)]
    return [mutant for file, module in modules for mutant in mutants(file, module.removesuffix(".__init__"))]
