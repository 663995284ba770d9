"""Prints every message that mirrord may show, with sample values, to be read in one go.

`python -m tests.docs.messages [--module PATH] [--code CODE]`: errors as the command line prints
them, with their hints, then all other texts of each module, each with the place in the code.
Where a part of a message varies, each of its texts appears once. Samples: message_samples.txt.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from typing import NamedTuple, TypeGuard

from mirrord.core.errors import MirrordError
from tests.docs.message_text import SAMPLES, UNKNOWN, Module, Product, called, named
from tests.unit.test_vocabulary import all_errors

_CLASSES = {each.__name__: each for each in all_errors()}
_PARTS = ("what", "where", "why", "hint")
#: Other calls that make errors: the parts that their arguments are, in order.
_MADE_BY = {
    "Rule": ("", "code", "what", "hint", "why"),
    "Refusal": ("why", "hint"),
    "Conflict": ("what", "hint"),
}
#: Calls whose texts are not shown to anybody.
_SILENT = re.compile(
    "execute|executemany|executescript|fullmatch|match|compile|startswith|endswith|split|partition|"
    "rpartition|removeprefix|removesuffix|replace|reached|Thread|TypeVar|calcsize|unpack|lenient|"
    "unpack_from|strptime|strftime|index|find|rfind|count|Method|TypeError|AssertionError|Traced"
)
#: Parameters and functions of which the same is true: of plots, and of the lines of trace formats.
_DATA = frozenset(
    {"header", "loc", "xycoords", "textcoords", "family", "_csv", "_blkparse", "_fio", "_msr"}
)
_WORDS = re.compile(r"[A-Za-z'\")][,:;)]* +['\"(]?[A-Za-z]{2,}")
#: SQL, Lua, Python, CSS, patterns.
_CODE = re.compile(
    r"^\s*(SELECT|INSERT|UPDATE|DELETE FROM|CREATE|PRAGMA|ALTER|DROP|WITH|REPLACE|import)\b|"
    r"^\s*[<:@.]|CREATE TABLE|CREATE INDEX|ALTER TABLE|\blocal \w+ ?[,=]|\bfunction\(|\{failed|"
    r"sans-serif|'none'; |\(\?|\)\?|\\S|\.\*|\[\^|\|No "
)


class Message(NamedTuple):
    """A message. kind: the error's code, or the function that shows it."""

    module: str
    line: int
    kind: str
    text: str
    hint: str = ""
    what: str = ""

    def __str__(self) -> str:
        head = "error: " if self.is_error else ""
        hint = f"\n  hint: {self.hint}" if self.hint else ""
        return f"{self.line} [{self.kind}]\n  {head}{self.text}{hint}"

    @property
    def is_error(self) -> bool:
        return self.kind in MirrordError.by_code


class Messages:
    """The messages of the product. missing: expressions in them without a sample."""

    def __init__(self, product: Product) -> None:
        self.product = product
        self.all: list[Message] = []
        for module in product.modules:
            self.all += self._errors(module)
        self.all += self._others()
        self.all = sorted(set(self.all), key=lambda each: (each.module, each.line))
        self.missing = [
            f"{each.module}:{each.line}: no sample for {expression}"
            for each in self.all
            for expression in UNKNOWN.findall(each.text + each.hint)
        ]

    def _texts(self, node: ast.expr, module: Module) -> list[str]:
        return [_filled(each.text) for each in self.product.texts(node, module)]

    def _errors(self, module: Module) -> Iterator[Message]:
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.Call):
                continue
            name = called(node)
            if name in _CLASSES:
                order: tuple[str, ...] = ("what",)
            elif name in _MADE_BY and any(isinstance(each, ast.Constant) for each in node.args):
                order = _MADE_BY[name]
            else:
                continue
            given = dict(zip(order, node.args, strict=False))
            given |= {word.arg: word.value for word in node.keywords if word.arg}
            kind = _CLASSES.get(named(given["code"]) if "code" in given else name)
            code = kind.code if kind else "refused"
            yield from self._rendered(module, node, code, given)

    def _rendered(
        self, module: Module, node: ast.Call, code: str, given: dict[str, ast.expr]
    ) -> Iterator[Message]:
        self.product.parts.update(given.values())
        parts = {part: self._texts(given[part], module) for part in _PARTS if part in given}
        if not parts:
            return
        parts["where"] = parts.get("where", [""])[:1]
        if code == "bug":
            parts["hint"] = [MirrordError.by_code[code]("").hint]
        for number in range(max(map(len, parts.values()))):
            shown = {part: texts[number % len(texts)] for part, texts in parts.items()}
            error = MirrordError(
                shown.get("what", "'mirrord update home' is not possible"),
                where=shown["where"],
                why=shown.get("why", ""),
                hint=shown.get("hint", ""),
            )
            error.mirror = "home"
            yield Message(module.path, node.lineno, code, str(error), error.hint, error.what)

    def _others(self) -> Iterator[Message]:
        texts: dict[ast.expr, tuple[Module, list[str]]] = {}
        for module in self.product.modules:
            for node in ast.walk(module.tree):
                if _is_text(node):
                    whole = _whole(node, module)
                    if whole not in texts and not _is_silent(whole, module):
                        texts[whole] = (module, self._texts(whole, module))
                elif isinstance(node, ast.FunctionDef) and _is_command(node, module):
                    for paragraph in (ast.get_docstring(node) or "").split("\n\n"):
                        if text := " ".join(paragraph.split()):
                            yield Message(module.path, node.lineno, "help", text)
        for node, (module, variants) in texts.items():
            if node not in self.product.parts:
                shown_by = _shown_by(node, module)
                for text in variants if shown_by not in _DATA else ():
                    if _WORDS.search(UNKNOWN.sub("", text)) and not _CODE.search(text):
                        yield Message(module.path, node.lineno, shown_by, text)


def _is_text(node: ast.AST) -> TypeGuard[ast.expr]:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str)
    return isinstance(node, ast.JoinedStr)


def _whole(node: ast.expr, module: Module) -> ast.expr:
    """The largest text that the node is part of."""
    for parent in module.above(node):
        match parent:
            case ast.BinOp(op=ast.Add()) | ast.JoinedStr() | ast.FormattedValue():
                node = parent
            case ast.IfExp(test=test) if test is not node:
                node = parent
            case _:
                break
    return node


def _is_silent(node: ast.expr, module: Module) -> bool:
    parent = module.parents[node]
    if isinstance(parent, ast.Expr | ast.Compare):
        return True
    call = parent if isinstance(parent, ast.Call) else None
    return call is not None and _SILENT.fullmatch(called(call)) is not None


def _shown_by(node: ast.expr, module: Module) -> str:
    for parent in module.above(node):
        if isinstance(parent, ast.keyword) and parent.arg:
            return parent.arg
        if isinstance(parent, ast.Call):
            return called(parent)
        if isinstance(parent, ast.FunctionDef):
            return parent.name
    return "text"


def _is_command(node: ast.FunctionDef, module: Module) -> bool:
    return "cli/commands/" in module.path and not node.name.startswith("_")


def _filled(text: str) -> str:
    """With samples for names in braces, which the product fills with `format`."""
    samples = {"mirror": "home", **SAMPLES}
    return re.sub(r"\{(\w+)\}", lambda each: samples.get(each[1], each[0]), text)


def main() -> int:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.docs.messages")
    parser.add_argument("--module", default="", help="only modules whose path begins like this")
    parser.add_argument("--code", default="", help="only errors with this code (docs/errors.md)")
    options = parser.parse_args()
    messages = Messages(Product())
    module = ""
    for each in messages.all:
        if each.module.startswith(options.module) and options.code in ("", each.kind):
            if each.module != module:
                module = each.module
                print(f"\n== {module}")
            print(each)
    for missing in messages.missing:
        print(missing, file=sys.stderr)
    return 1 if messages.missing else 0


if __name__ == "__main__":
    sys.exit(main())
