"""Which texts an expression of the product can have: evaluated from its syntax tree."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from tests.support.unit import ROOT

FOLDERS = ("mirrord", "drivers", "schedules", "traces", "analysis")
_DEPTH_MAX = 12
_Function = ast.FunctionDef | ast.AsyncFunctionDef


_LINES = (ROOT / "tests/docs/message_samples.txt").read_text(encoding="utf-8").splitlines()
#: What stands for an expression, or for a name.
SAMPLES = {
    line.partition(" = ")[0]: line.partition(" = ")[2]
    for line in _LINES
    if not line.startswith("#")
}
#: Around an expression for which there is neither a text nor a sample.
UNKNOWN = re.compile("⟦(.*?)⟧", re.DOTALL)


class Text(NamedTuple):
    """A text that an expression can have; written: (partly) from a literal, not from a sample."""

    text: str
    written: bool


class Module:
    """A module of the product. path: relative to the root."""

    def __init__(self, path: Path) -> None:
        self.path = str(path.relative_to(ROOT))
        name = self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        self.name = name if name.startswith("mirrord") else f"mirrord.{name}"
        self.tree = ast.parse(path.read_text(encoding="utf-8"))
        self.parents = {
            child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)
        }
        #: What the imported names stand for: (module, name), or (module, "").
        self.imports: dict[str, tuple[str, str]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    self.imports[alias.asname or alias.name] = (node.module, alias.name)

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        while node in self.parents:
            node = self.parents[node]
            yield node

    def functions_around(self, node: ast.AST) -> list[_Function]:
        return [each for each in self.above(node) if isinstance(each, _Function)]

    @cached_property
    def constants(self) -> dict[str, ast.expr]:
        found: dict[str, ast.expr] = {}
        for scope in (each for each in ast.walk(self.tree) if isinstance(each, ast.ClassDef)):
            found |= dict(_assigned(scope.body))
        return found | dict(_assigned(self.tree.body))


def _assigned(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value
        elif isinstance(node, ast.AnnAssign) and node.value and isinstance(node.target, ast.Name):
            yield node.target.id, node.value


class Product:
    """All modules, with the functions that they define and their calls, by name."""

    def __init__(self) -> None:
        paths = chain.from_iterable(sorted((ROOT / each).rglob("*.py")) for each in FOLDERS)
        real = (path for path in paths if path.resolve() == path)
        self.modules = [Module(path) for path in real]
        self.by_name = {module.name: module for module in self.modules}
        self.functions: dict[str, list[tuple[Module, _Function]]] = defaultdict(list)
        self.calls: dict[str, list[tuple[Module, ast.Call]]] = defaultdict(list)
        #: The expressions that were evaluated as parts of others.
        self.parts: set[ast.AST] = set()
        #: The expressions that are being evaluated, how often a recursion was cut off, and all
        #: results without one.
        self._active: list[ast.AST] = []
        self._cut = 0
        self._known: dict[ast.AST, list[Text]] = {}
        for module in self.modules:
            for node in ast.walk(module.tree):
                if isinstance(node, _Function):
                    self.functions[node.name].append((module, node))
                elif isinstance(node, ast.Call):
                    self.calls[called(node)].append((module, node))

    def texts(self, node: ast.expr, module: Module) -> list[Text]:
        """Each text that the expression can have, at least one."""
        if self._active:
            self.parts.add(node)
        if (sample := _certain(node)) is not None:
            return [Text(sample, False)]
        if node in self._known:
            return self._known[node]
        if node in self._active or len(self._active) > _DEPTH_MAX:
            self._cut += 1
            return [Text(_sample(node), False)]
        cut = self._cut
        self._active.append(node)
        found = list(dict.fromkeys(self._texts(node, module)))
        self._active.pop()
        if cut == self._cut:
            self._known[node] = found
        return found

    def _texts(self, node: ast.expr, module: Module) -> list[Text]:
        match node:
            case ast.Constant(value=str(text)):
                return [Text(text, True)]
            case ast.Constant(value=value):
                return [Text(str(value), False)]
            case ast.JoinedStr(values=parts):
                return _in_sequence(
                    [
                        self._full(part, module) if _leaves_gap(parts, n) else found
                        for n, part in enumerate(parts)
                        if (found := self._part(part, module))
                    ]
                )
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return _in_sequence([self.texts(left, module), self.texts(right, module)])
            case ast.IfExp(body=body, orelse=orelse):
                return self.texts(body, module) + self.texts(orelse, module)
            case ast.BoolOp(values=values):
                return [text for value in values for text in self.texts(value, module)]
            case ast.NamedExpr(value=value):
                return self.texts(value, module)
            case ast.Call(func=ast.Name(id="str" | "harmless"), args=[value]):
                return self.texts(value, module)
            case ast.Call(
                func=ast.Attribute(value=inner, attr="format" | "format_map" | "strip" | "rstrip")
            ):
                return self.texts(inner, module)
            case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(sep)), attr="join")):
                return self._joined(sep, node.args[0], module)
            case ast.Subscript(value=value):
                written = self._items(value, module)
                return written or [Text(_sample(node), False)]
            case ast.Call():
                written = self._returned(node, module)
                return written or [Text(_sample(node), False)]
            case ast.Name() | ast.Attribute():
                written = self._values(node, module)
                return written or [Text(_sample(node), False)]
        return [Text(_sample(node), False)]

    def _full(self, part: ast.expr, module: Module) -> list[Text]:
        """The texts of a placeholder that are not empty."""
        value = part.value if isinstance(part, ast.FormattedValue) else part
        found = [text for text in self._part(part, module) if text.text not in ("", "''")]
        return found or [Text(_sample(value), False)]

    def _part(self, part: ast.expr, module: Module) -> list[Text]:
        if not isinstance(part, ast.FormattedValue):
            return self.texts(part, module)
        found = self.texts(part.value, module)
        if part.conversion == ord("r"):
            return [Text(f"'{text}'", written) for text, written in found]
        if isinstance(part.format_spec, ast.JoinedStr):
            spec = "".join(text for text, _ in self._part_texts(part.format_spec, module))
            return [Text(_formatted(text, spec), written) for text, written in found]
        return found

    def _part_texts(self, spec: ast.JoinedStr, module: Module) -> list[Text]:
        return [self._part(part, module)[0] for part in spec.values]

    def _joined(self, sep: str, items: ast.expr, module: Module) -> list[Text]:
        if isinstance(items, ast.GeneratorExp | ast.ListComp):
            found = self.texts(items.elt, module)
            return [Text(sep.join(text for text, _ in found[:2]), True), *found]
        if isinstance(items, ast.List | ast.Tuple):
            plain = [each for each in items.elts if not isinstance(each, ast.Starred)]
            parts = [self.texts(each, module) for each in plain]
            return _in_sequence([part for each in parts for part in (each, [Text(sep, True)])][:-1])
        return self.texts(items, module)

    def _values(self, node: ast.Name | ast.Attribute, module: Module) -> list[Text]:
        """What is assigned to a variable, a parameter or a constant, where that is written."""
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id in module.imports:
                there = self.by_name.get(".".join(module.imports[node.value.id]))
                return self._constant(node.attr, there) if there else []
            return []
        for function in module.functions_around(node):
            parameters = [*function.args.posonlyargs, *function.args.args]
            parameters += function.args.kwonlyargs
            if node.id in {each.arg for each in parameters}:
                given = self._arguments(function, node.id, module)
                return given + self._local(function, node.id, module)
            if local := self._local(function, node.id, module):
                return local
        if node.id in module.imports:
            source, name = module.imports[node.id]
            return self._constant(name, self.by_name[source]) if source in self.by_name else []
        return self._constant(node.id, module)

    def _constant(self, name: str, module: Module) -> list[Text]:
        value = module.constants.get(name)
        return self._written(value, module) if value else []

    def _written(self, node: ast.expr, module: Module) -> list[Text]:
        """The texts of an expression that come from literals."""
        if isinstance(node, ast.Dict | ast.List | ast.Tuple):
            return []
        return [text for text in self.texts(node, module) if text.written]

    def _items(self, node: ast.expr, module: Module) -> list[Text]:
        """The values of a table, of which one is chosen."""
        table: ast.expr | None = node
        if isinstance(node, ast.Name):
            table = module.constants.get(node.id)
        if not isinstance(table, ast.Dict | ast.List | ast.Tuple):
            return []
        items = table.values if isinstance(table, ast.Dict) else table.elts
        return [text for item in items for text in self._written(item, module)]

    def _local(self, function: _Function, name: str, module: Module) -> list[Text]:
        found: list[Text] = []
        for node in ast.walk(function):
            match node:
                case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                    for target, each in zip(names, values, strict=False):
                        if isinstance(target, ast.Name) and target.id == name:
                            found += self._written(each, module)
                case (
                    ast.Assign(targets=[ast.Name(id=target)], value=value)
                    | ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value)
                    | ast.NamedExpr(target=ast.Name(id=target), value=value)
                ) if target == name:
                    found += self._written(value, module)
                case ast.AugAssign(target=ast.Name(id=target), value=value) if target == name:
                    more = self._written(value, module)
                    found += [Text(found[0].text + each.text, True) for each in more if found]
        return found

    def _arguments(self, function: _Function, name: str, module: Module) -> list[Text]:
        """What the product gives for a parameter, where that is written there."""
        arguments = function.args
        positional = [each.arg for each in [*arguments.posonlyargs, *arguments.args]]
        method = positional[:1] in (["self"], ["cls"])
        callee = function.name
        if callee == "__init__":
            callee = next(
                each.name for each in module.above(function) if isinstance(each, ast.ClassDef)
            )
        found: list[Text] = []
        for there, call in self.calls[callee]:
            if not self._means(call, there, function.name, module, method=method):
                continue
            given = {word.arg: word.value for word in call.keywords}
            given |= dict(zip(positional[1:] if method else positional, call.args, strict=False))
            if name in given:
                found += self._written(given[name], there)
        defaults = dict(zip(reversed(positional), reversed(arguments.defaults), strict=False))
        pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        defaults |= {each.arg: value for each, value in pairs if value}
        if found and name in defaults:
            found += self._written(defaults[name], module)
        return found

    def _means(
        self, call: ast.Call, there: Module, name: str, module: Module, *, method: bool
    ) -> bool:
        """Whether a call by the function's name is of this one (`module`'s)."""
        if isinstance(call.func, ast.Name):
            if call.func.id in there.imports:
                return there.imports[call.func.id][0] == module.name
            return there is module
        if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name):
            imported = there.imports.get(call.func.value.id)
            if imported and ".".join(imported) in self.by_name:
                return ".".join(imported) == module.name
        return method and (there is module or len(self.functions[name]) == 1)

    def _returned(self, call: ast.Call, module: Module) -> list[Text]:
        """The texts that a function of the product returns."""
        found: list[Text] = []
        for there, function in self.functions[called(call)]:
            if self._means(call, module, function.name, there, method=True):
                for node in ast.walk(function):
                    if isinstance(node, ast.Return) and node.value:
                        found += self._written(node.value, there)
        return found


def _certain(node: ast.expr) -> str | None:
    """The sample that is used even if the product has texts: of a call, of more than a name, or of
    a name that is marked so.
    """
    if isinstance(node, ast.Call):
        return SAMPLES.get(f"{ast.unparse(node.func)}()", SAMPLES.get(f"{named(node)}()"))
    if isinstance(node, ast.Attribute):
        return SAMPLES.get(ast.unparse(node), SAMPLES.get(f"{node.attr}="))
    return SAMPLES.get(f"{node.id}=") if isinstance(node, ast.Name) else None


def _sample(node: ast.expr) -> str:
    full = ast.unparse(node)
    keys = [key for key in (full, named(node), f"{named(node)}()") if key in SAMPLES]
    return SAMPLES[keys[0]] if keys else f"⟦{full}⟧"


def called(call: ast.Call) -> str:
    """The last part of the name of what is called."""
    return named(call.func)


def named(node: ast.expr) -> str:
    """The name of which an expression is a value: `name` for `self.pair.name`, `size(x)[0]`…"""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=ast.Name(id="len" | "sum" | "int" | "round" | "max" | "min" | "abs")):
            return "count"
        case ast.Call(func=ast.Name(id="sorted" | "list" | "tuple" | "set" | "str"), args=[value]):
            return named(value)
        case ast.Call(func=inner) | ast.Subscript(value=inner) | ast.Await(value=inner):
            return named(inner)
        case ast.BinOp():
            return "count"
    return ast.unparse(node)


def _leaves_gap(parts: list[ast.expr], place: int) -> bool:
    """Whether there would be a gap if the part of an f-string were empty."""
    if not isinstance(parts[place], ast.FormattedValue):
        return False
    before, after = (
        part.value if isinstance(part, ast.Constant) else ""
        for part in ([None, *parts][place], [*parts, None][place + 1])
    )
    return str(before)[-1:] in " '(" and str(after)[:1] in " ,.;:)'"


def _in_sequence(parts: list[list[Text]]) -> list[Text]:
    """The parts one after another, as often as needed to show each text of each part once."""
    parts = [part for part in parts if part]
    count = max(map(len, parts), default=1)
    rows = [[part[number % len(part)] for part in parts] for number in range(count)]
    return [Text("".join(each.text for each in row), True) for row in rows]


def _formatted(text: str, spec: str) -> str:
    for kind in (str, int, float):
        read: Callable[[str], object] = kind
        with suppress(ValueError):
            return format(read(text), spec)
    return text
