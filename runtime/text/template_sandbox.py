"""The sandbox of chat templates: what a stranger's template may name, make and take.

Jinja's own sandbox keeps a template away from Python's insides, but not from the machine's memory:
``"%9999999999d" % 1`` is a single step. Here every turn of a loop, every call, and every operation
whose result or effort may be large is paid for with one supply of fuel, before it is carried out.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import wraps
from typing import Any, cast

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import EvalContext
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import pass_eval_context

from edgedec.runtime.text.template_code import BoundedFormatter, SafeFormatter, TemplateCode
from edgedec.runtime.text.template_fuel import (
    ITEM,
    Fuel,
    depth,
    is_lazy,
    own_size,
    replaced_size,
    shallow_size,
    whole,
)

MAX_TEMPLATE_WORK = 1 << 27
"""What any rendering may spend. Units: see `template_fuel.Fuel`."""

WORK_PER_INPUT = 64
"""What it may spend more for each character of the messages."""

_STEP = 64
_MAX_EXPONENT = 64
_MAX_FORM = 1000  # characters of a date's form

_TEXT_METHODS = frozenset([
    "capitalize", "casefold", "center", "count", "encode", "endswith", "expandtabs", "find",
    "format", "format_map", "index", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit",
    "isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper",
    "join", "ljust", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace",
    "rfind", "rindex", "rjust", "rpartition", "rsplit", "rstrip", "split", "splitlines",
    "startswith", "strip", "swapcase", "title", "upper", "zfill",
])  # fmt: skip
_METHODS: tuple[tuple[type | tuple[type, ...], frozenset[str]], ...] = (
    (str, _TEXT_METHODS),
    (Mapping, frozenset(["copy", "get", "items", "keys", "values"])),
    ((int, float), frozenset(["bit_length", "is_integer"])),
    (bytes, frozenset(["decode", "endswith", "hex", "startswith"])),
)
_ENCODINGS = frozenset(["ascii", "iso8859-1", "utf-8", "utf-16", "utf-16-be", "utf-16-le",
                        "utf-32", "utf-32-be", "utf-32-le"])  # fmt: skip
"""Those whose work grows with the text alone."""
_ENCODING_ERRORS = ("strict", "ignore", "replace", "backslashreplace", "xmlcharrefreplace")
_ENCODING_GROWTH = 10  # bytes or characters that one becomes

_SCOPES = ("_loop_vars", "_block_vars")  # what generated code passes on
_COUNTED = "counted"
_FREE = frozenset(["attr", "count", "d", "default", "first", "last", "length"])
_LAZY = frozenset(["map", "reject", "rejectattr", "select", "selectattr"])
_SHALLOW = _LAZY | {"items", "list", "reverse"}
_GROWTH = {"e": 6, "escape": 6, "forceescape": 6, "upper": 3, "urlencode": 12, "xmlattr": 7}
_CONVERSION = re.compile(
    r"%(?:\([^()]*\))?[#0\- +]*(\d*|\*)(?:\.(\d*|\*))?[hlL]?(.?)", re.ASCII | re.DOTALL
)


class GenerationTag(Extension):
    """``{% generation %}``, with which training tells answers apart: its content stays as it is.

    Source: transformers ``utils/chat_template_utils.py``, Apache-2.0.
    """

    tags = {"generation"}  # noqa: RUF012 (as Jinja declares it)

    def parse(self, parser: Parser) -> nodes.Node:
        """Returns the content, in a scope of its own."""
        lineno = next(parser.stream).lineno
        content = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(content, lineno=lineno)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The dialect that transformers' ``apply_chat_template`` speaks, sandboxed and bounded.

    Source: transformers ``utils/chat_template_utils.py``, Apache-2.0.
    """

    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "**", "%"])

    def __init__(self) -> None:
        self.fuel = Fuel()
        self._prices: dict[str, int] = {}  # of a macro's call, and of the whole template's under ""
        # Constants would be folded when a template is read, and paid for only then.
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, GenerationTag],
            optimized=False,
            finalize=self._output,
        )
        self.code_generator_class = TemplateCode
        self.filters = {
            name: self._bounded(name, function)
            for name, function in {**self.filters, "tojson": self._tojson}.items()
        }
        self.filters[_COUNTED] = self.fuel.counted
        for name in ("eq", "==", "equalto", "ne", "!=", "lt", "<", "lessthan", "le", "<=",
                     "gt", ">", "greaterthan", "ge", ">=", "in"):  # fmt: skip
            self.tests[name] = self._compared(cast(Callable[..., Any], self.tests[name]))
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    # What generated code calls.

    def constant(self, text: str) -> str:
        """Returns ``text``, a constant that is put out, paid for."""
        self.fuel.pay(len(text))
        return text

    def made(self, value: Any) -> Any:
        """Returns ``value``, a new container or something to compare, paid for."""
        self.fuel.pay_for(value)
        return value

    def searched(self, value: Any) -> Any:
        """Returns ``value``, in which something is looked for, paid for."""
        if not isinstance(value, Mapping):
            self.fuel.pay_for(value)
        return value

    def joined(self, join: Callable[[Any], str], values: Sequence[Any]) -> str:
        """Returns ``values`` as one text."""
        self.fuel.pay_for(values)
        return join(values)

    def sliced(self, value: Any, part: slice) -> Any:
        """Returns ``value[part]``."""
        self.fuel.pay(shallow_size(value))
        return value[part]

    # What Jinja lets a sandbox decide.

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Returns the result of an operator, paid for before it is computed."""
        if isinstance(left, int | float) and isinstance(right, int | float):
            if operator == "**" and abs(right) > _MAX_EXPONENT and isinstance(right, int):
                raise SecurityError("exponent too large")
            self.fuel.pay(own_size(left) + own_size(right))
        elif operator == "*":
            n, repeated = (left, right) if isinstance(left, int) else (right, left)
            self.fuel.pay(whole(n) * shallow_size(repeated))
        elif operator == "%" and isinstance(left, str):
            self._pay_percent(left, right)
        elif operator == "%" and isinstance(left, bytes):
            raise SecurityError("bytes are no form of a text")
        else:
            self.fuel.pay(shallow_size(left) + shallow_size(right))
        return super().call_binop(context, operator, left, right)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Returns an item; hashing a tuple is paid for."""
        if isinstance(argument, tuple):
            self.fuel.pay_for(argument)  # to be hashed
        return super().getitem(obj, argument)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Says whether a template may use ``attr``: of text and containers a few methods."""
        for kind, methods in _METHODS:
            if isinstance(obj, kind):
                return attr in methods
        return super().is_safe_attribute(obj, attr, value)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Returns the result of a call, paid for before it is made."""
        owner = getattr(obj, "__self__", None)
        price = self._prices[""]
        if isinstance(owner, str):
            args = tuple(list(self.fuel.counted(a)) if is_lazy(a) else a for a in args)
            self._pay_method(owner, obj.__name__, *args)
            if obj.__name__ == "encode":
                self._pay_encoding(owner, *args, **kwargs)
        elif isinstance(owner, bytes):
            self.fuel.pay_for(args)
            if obj.__name__ == "decode":
                self._pay_encoding(owner, *args, **kwargs)
            self.fuel.pay(_ENCODING_GROWTH * len(owner))
        elif isinstance(obj, Macro | LoopContext):
            self.fuel.pay(self._prices.get(obj.name, price) if isinstance(obj, Macro) else price)
            if isinstance(obj, LoopContext) and args:
                args = (self.fuel.counted(args[0], price), *args[1:])
        else:
            self.fuel.pay(price if isinstance(obj, BlockReference) else _STEP)
            self.fuel.pay_for(args)
        if kwargs:
            self.fuel.pay_for([value for name, value in kwargs.items() if name not in _SCOPES])
        return super().call(context, obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Returns ``str.format`` that uses fuel, None where it is another function."""
        if super().wrap_str_format(value) is None:
            return None
        text, is_mapping = value.__self__, value.__name__ == "format_map"
        formatter = (
            SafeFormatter(self, self.fuel, escape=text.escape)
            if hasattr(text, "__html__")
            else BoundedFormatter(self, self.fuel)
        )

        def form(*args: Any, **kwargs: Any) -> str:
            self.fuel.pay(len(text))
            named = args[0] if is_mapping else kwargs
            return cast(str, type(text)(formatter.vformat(text, () if is_mapping else args, named)))

        return form

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        self._prices = {"": _price(tree), "caller": _price(tree)}
        for macro in tree.find_all(nodes.Macro):
            self._prices[macro.name] = max(_price(macro), self._prices.get(macro.name, 0))
        for loop in tree.find_all(nodes.For):
            price = nodes.Const(_price(loop))
            loop.iter = nodes.Filter(loop.iter, _COUNTED, [price], [], None, None)
            loop.set_lineno(loop.lineno).set_environment(self)
        return tree

    # What operations cost.

    @pass_eval_context
    def _output(self, eval_context: EvalContext, value: Any) -> Any:
        # The context is not needed; asking for it keeps Jinja from folding constants.
        self.fuel.pay_for(value)
        return value

    def _compared(self, test: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(test)
        def bounded(*args: Any) -> Any:
            self.fuel.pay_for(args)
            return test(*args)

        return bounded

    def _bounded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        n_passed = int(hasattr(function, "jinja_pass_arg"))
        special = getattr(self, f"_pay_{name}", None)

        @wraps(function)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            passed, value, rest = args[:n_passed], args[n_passed], args[n_passed + 1 :]
            if is_lazy(value):
                counted = self.fuel.counted(value)
                value = counted if name in _LAZY else list(counted)
            elif name in _SHALLOW:
                self.fuel.pay(ITEM * len(value) if hasattr(value, "__len__") else 1)
            if name not in _SHALLOW and name not in _FREE:
                self.fuel.pay(_GROWTH.get(name, 1) * self.fuel.pay_for(value))
            self.fuel.pay_for((rest, kwargs))
            if special is not None:
                special(value, *rest, **kwargs)
            return function(*passed, value, *rest, **kwargs)

        return bounded

    def _pay_method(self, text: str, name: str, *args: Any) -> None:
        n_arguments = self.fuel.pay_for(args)
        n = len(text)
        if name in ("center", "ljust", "rjust", "zfill"):
            n += whole(args[0]) if args else 0
        elif name == "expandtabs":
            n += n * max(map(whole, args), default=8)
        elif name in ("split", "rsplit", "splitlines"):
            separator = args[0] if args and name != "splitlines" else None
            is_given = isinstance(separator, str) and separator
            n += ITEM * (text.count(str(separator)) + 1 if is_given else n // 2 + 1)
        elif name in ("strip", "lstrip", "rstrip") and args:
            n *= 1 + n_arguments
        elif name == "join" and args:
            n = n * len(args[0]) + n_arguments
        elif name == "replace" and len(args) > 1:
            n = replaced_size(text, args[0], args[1])
        self.fuel.pay(3 * n)  # some letters have capitals of three

    def _pay_encoding(
        self, text: str | bytes, encoding: str = "utf-8", errors: str = "strict"
    ) -> None:
        try:
            name = codecs.lookup(encoding).name
        except LookupError:
            name = ""
        if name not in _ENCODINGS or errors not in _ENCODING_ERRORS:
            raise SecurityError(f"encoding {encoding!r} with errors {errors!r} is not supported")
        self.fuel.pay(_ENCODING_GROWTH * len(text))

    def _pay_percent(self, form: str, values: Any) -> None:
        n_values = self.fuel.pay_for(values)
        conversions = _CONVERSION.findall(form)
        for width, precision, kind in conversions:
            if "*" in (width, precision) or kind not in "diouxXeEfFgGcrsa%" or len(width) > 9:
                raise SecurityError(f"conversion %{width}{kind} is not supported")
            self.fuel.pay(whole(int(width or 0)) + int(precision or 0))
        n_uses = len(conversions) if isinstance(values, Mapping) else 1
        self.fuel.pay(len(form) + n_uses * n_values)

    def _pay_format(self, value: Any, *args: Any, **kwargs: Any) -> None:
        self._pay_percent(str(value), kwargs or args)

    def _pay_center(self, value: Any, width: int = 80) -> None:
        self.fuel.pay(whole(width))

    def _pay_wordwrap(
        self,
        value: Any,
        width: int = 79,
        break_long_words: bool = True,
        wrapstring: str | None = None,
        break_on_hyphens: bool = True,
    ) -> None:
        # What is left of a long word is copied for each line.
        text, n_line = str(value), max(whole(width), 1)
        n_lines = len(text.split()) + len(text) // n_line + text.count("\n") + 1
        self.fuel.pay(_longest_word(text) ** 2 // n_line + n_lines * len(wrapstring or "\n"))

    def _pay_pprint(self, value: Any) -> None:
        self.fuel.pay(8 * self.fuel.pay_for(value) * (1 + depth(value)))  # anew at each depth

    def _pay_striptags(self, value: Any) -> None:
        text = str(value)
        self.fuel.pay(len(text) * text.count("<"))  # the text is copied for each tag

    def _pay_urlize(self, value: Any, *args: Any, **kwargs: Any) -> None:
        text = str(value)
        n_added = _STEP + self.fuel.pay_for((args, kwargs))
        self.fuel.pay(8 * len(text) + _longest_word(text) ** 2 + n_added * len(text.split()))

    def _pay_indent(self, value: Any, width: int | str = 4, *args: Any, **kwargs: Any) -> None:
        n = len(width) if isinstance(width, str) else whole(width)
        self.fuel.pay(n * (1 + len(str(value))))

    def _pay_batch(self, value: Any, linecount: int, fill_with: Any = None) -> None:
        self.fuel.pay(ITEM * whole(linecount))

    _pay_slice = _pay_batch

    def _pay_round(self, value: Any, precision: int = 0, method: str = "common") -> None:
        if whole(precision) > 100:
            raise SecurityError("precision too large")

    def _pay_trim(self, value: Any, chars: str | None = None) -> None:
        self.fuel.pay(len(str(value)) * len(chars or ""))

    def _pay_replace(self, value: Any, old: Any, new: Any, count: Any = None) -> None:
        self.fuel.pay(replaced_size(str(value), str(old), str(new)))

    def _pay_join(self, value: Any, d: Any = "", attribute: Any = None) -> None:
        self.fuel.pay(len(value) * len(str(d)) if hasattr(value, "__len__") else 1)

    def _pay_sum(self, value: Any, attribute: Any = None, start: Any = 0) -> None:
        if not isinstance(start, int | float):
            raise SecurityError("sum adds numbers only")

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        # Jinja's own filter escapes HTML characters, which a model would read as text.
        n = self.fuel.pay_for(value) * (6 if ensure_ascii else 2)
        n_indent = len(indent) if isinstance(indent, str) else whole(indent or 0)
        self.fuel.pay(n * (1 + n_indent * depth(value) + len("".join(separators or ()))))
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )


def _price(tree: nodes.Node) -> int:
    """Returns what going once through ``tree`` costs; loops and calls in it cost more."""
    return _STEP + sum(map(_price, tree.iter_child_nodes()))


def _longest_word(text: str) -> int:
    return max(map(len, text.split()), default=0)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    if len(form) > _MAX_FORM:
        raise SecurityError("the form of a date is too long")
    return datetime.now().strftime(form)
