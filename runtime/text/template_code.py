"""The Python code that chat templates become, with nothing that goes past the sandbox."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame, operators
from jinja2.sandbox import SandboxedEnvironment, SandboxedEscapeFormatter, SandboxedFormatter

from edgedec.runtime.text.template_fuel import Fuel


class TemplateCode(CodeGenerator):
    """Writes the code of a template so that nothing goes past the sandbox."""

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return f"environment.constant({super()._output_const_repr(group)})"

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802
        """Tuples are paid for."""
        if node.ctx == "load":
            self._wrapped("made", super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802
        """Lists are paid for."""
        self._wrapped("made", super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802
        """Mappings are paid for, and the hashing of their keys."""
        self.write("environment.made({")
        for pair in node.items:
            self._compared("made", pair.key, frame)  # to be hashed
            self.write(": ")
            self.visit(pair.value, frame)
            self.write(", ")
        self.write("})")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        """Text joined by ``~`` is paid for before it is joined."""
        join = "markup_join if context.eval_ctx.autoescape else str_join"
        self.write(f"environment.joined({join}, (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:  # noqa: N802
        """What is compared is paid for."""
        self.write("(")
        self._compared("made", node.expr, frame)
        for operand in node.ops:
            self.visit(operand, frame)
        self.write(")")

    def visit_Operand(self, node: nodes.Operand, frame: Frame) -> None:  # noqa: N802
        """What is compared is paid for; where it is searched, all of it."""
        self.write(f" {operators[node.op]} ")
        self._compared("searched" if "in" in node.op else "made", node.expr, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802
        """Slices are paid for."""
        if not isinstance(node.arg, nodes.Slice):
            super().visit_Getitem(node, frame)
            return
        self.write("environment.sliced(")
        self.visit(node.node, frame)
        self.write(", slice(")
        for bound in (node.arg.start, node.arg.stop, node.arg.step):
            self.visit(nodes.Const(None) if bound is None else bound, frame)
            self.write(", ")
        self.write("))")

    def _compared(self, function: str, node: nodes.Expr, frame: Frame) -> None:
        if isinstance(node, nodes.Const):
            self.visit(node, frame)
        else:
            self._wrapped(function, self.visit, node, frame)

    def _wrapped(self, function: str, visit: Callable[..., Any], node: Any, frame: Frame) -> None:
        self.write(f"environment.{function}(")
        visit(node, frame)
        self.write(")")


class BoundedFormatter(SandboxedFormatter):
    """``str.format`` whose results are paid for."""

    def __init__(self, environment: SandboxedEnvironment, fuel: Fuel, **options: Any) -> None:
        super().__init__(environment, **options)
        self._fuel = fuel

    def format_field(self, value: Any, format_spec: str) -> str:
        """Returns the field as written, its width paid for."""
        self._fuel.pay_for(value)
        self._fuel.pay(sum(map(int, re.findall(r"\d+", format_spec))))
        return str(super().format_field(value, format_spec))

    def convert_field(self, value: Any, conversion: Any) -> Any:
        """Returns the field converted, its text paid for."""
        self._fuel.pay(9 * self._fuel.pay_for(value))  # repr("\U0001f600") may take ten characters
        return super().convert_field(value, conversion)


class SafeFormatter(BoundedFormatter, SandboxedEscapeFormatter):
    """The same for text that is marked safe: what is put into it is escaped."""
