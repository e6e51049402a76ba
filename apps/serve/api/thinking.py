"""How clients switch thoughts on and off, and what chat templates read instead."""

from __future__ import annotations

from typing import Any, ClassVar

from edgedec.apps.serve.api.fields import Body, Others, Whole, harmless
from edgedec.apps.serve.core import invalid

_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


class ThinkingIn(Body):
    """Anthropic's way to say it. budget_tokens: most tokens of a thought."""

    type: str
    budget_tokens: Whole | None = None
    others: ClassVar[Others] = harmless("display")


class Reasoning(Body):
    """The way of responses, and of OpenRouter. max_tokens: of a thought."""

    effort: str | None = None
    enabled: bool | None = None
    max_tokens: Whole | None = None
    others: ClassVar[Others] = harmless(
        "summary generate_summary exclude context encrypted_content mode"
    )


class Thinking(Body):
    """All ways to say whether, and how much, a model is to think."""

    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    reasoning: Reasoning | None = None
    think: bool | str | None = None
    thinking: ThinkingIn | None = None
    enable_thinking: bool | None = None
    reasoning_budget: Whole | None = None
    reasoning_budget_tokens: Whole | None = None
    thinking_budget: Whole | None = None
    thinking_budget_tokens: Whole | None = None
    thinking_token_budget: Whole | None = None

    @property
    def thought_budget(self) -> int | None:
        """Most tokens of thoughts; None, or a negative number in the request, is no limit."""
        budgets = (
            None if self.thinking is None else self.thinking.budget_tokens,
            None if self.reasoning is None else self.reasoning.max_tokens,
            self.reasoning_budget,
            self.reasoning_budget_tokens,
            self.thinking_budget,
            self.thinking_budget_tokens,
            self.thinking_token_budget,
        )
        return min((n for n in budgets if n is not None and n >= 0), default=None)

    def variables(self) -> dict[str, Any]:
        """Returns what the chat template is to read.

        Raises:
            ServeError: An effort, or a kind of thinking, is none that is known.
        """
        variables: dict[str, Any] = {}
        effort = self._effort()
        is_thinking = self._switch()
        if effort == "none":
            is_thinking = False
        elif effort is not None:
            variables["reasoning_effort"] = effort
        if self.thought_budget is not None:  # Seed-OSS is told
            variables["thinking_budget"] = self.thought_budget
        if is_thinking is not None:  # models differ in the name
            variables.update(enable_thinking=is_thinking, thinking=is_thinking)
        return {**variables, **(self.chat_template_kwargs or {})}

    def _effort(self) -> str | None:
        named = {
            "reasoning_effort": self.reasoning_effort,
            "reasoning.effort": None if self.reasoning is None else self.reasoning.effort,
            "think": self.think if isinstance(self.think, str) else None,
        }
        for name, effort in named.items():
            if effort is not None and effort not in _EFFORTS:
                expected = ", ".join(_EFFORTS)
                raise invalid(f"{name} is {effort[:40]!r}, expected {expected}", param=name)
        return next((effort for effort in named.values() if effort is not None), None)

    def _switch(self) -> bool | None:
        kinds = {"enabled": True, "adaptive": None, "disabled": False}
        if self.thinking is not None and self.thinking.type not in kinds:
            kind, expected = self.thinking.type[:40], ", ".join(kinds)
            raise invalid(f"thinking.type is {kind!r}, expected {expected}", param="thinking")
        switches = (
            self.enable_thinking,
            self.think if isinstance(self.think, bool) else None,
            None if self.thinking is None else kinds[self.thinking.type],
            None if self.reasoning is None else self.reasoning.enabled,
            False if self.thought_budget == 0 else None,
        )
        return next((switch for switch in switches if switch is not None), None)


class Continuing(Body):
    """Whether a last message of the assistant is the beginning of the answer: it is by default."""

    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None

    @property
    def is_continued(self) -> bool:
        """It is."""
        return self.continue_final_message is not False
