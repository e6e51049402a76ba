"""A bundle as a model of lm-evaluation-harness, which has the tasks of general benchmarks.

``python -m edgedec.apps.evaluation.harness`` is `lm_eval` with one more model, ``edgedec``.

Source: EleutherAI/lm-evaluation-harness, ``docs/model_guide.md`` (MIT).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from lm_eval.__main__ import cli_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from edgedec.models.errors import ConfigError, EdgedecError
from edgedec.models.manifest import read_manifest
from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.opening.load import load
from edgedec.runtime.opening.options import EngineOptions
from edgedec.runtime.sampling.logprobs import TokenLogprob
from edgedec.runtime.search.scores import continuation_logprobs

_MAX_TREE = 64
"""Tokens of a continuation that may be one pass; longer ones are read in chunks."""

_SAMPLING = {"temperature": float, "top_k": int, "top_p": float, "min_p": float}
"""What tasks may ask of sampling -> the type of its value."""

_REQUEST = {"do_sample", "until", "max_gen_toks", *_SAMPLING}

Scored = tuple[float, bool]
"""Log-probability of a continuation in nats, and whether greedy decoding writes it."""


@register_model("edgedec")
class BundleLM(TemplateLM):  # type: ignore[misc]  # the harness has no types
    """A bundle. Texts are those of `edgedec run --raw`; with a chat template, of `edgedec run`."""

    def __init__(
        self,
        bundle: str,
        method: str | None = None,
        threads: int | None = None,
        context: int | None = None,
        draft: str | bool = True,
        **harness: Any,
    ) -> None:
        """Loads the bundle.

        Args:
            method, threads, context, draft: As the options of `edgedec run`.
            harness: What the harness gives every model: a batch size, and a device that is its
                own guess. Neither changes anything here: problems share passes by themselves, and
                a bundle says what it runs on.

        Raises:
            EdgedecError: The bundle cannot be loaded, or an argument is unknown.
        """
        super().__init__()
        if unknown := sorted(set(harness) - {"batch_size", "max_batch_size", "device"}):
            raise ConfigError(
                f"got {', '.join(unknown)}, expected bundle, method, threads, context or draft"
            )
        folder = Path(bundle)
        manifest = read_manifest(folder)
        source = draft if isinstance(draft, bool) else Path(draft)
        self.engine = load(folder, EngineOptions(threads=threads, context=context, draft=source))
        self._name, self._method = manifest.name, method
        self._opening = manifest.opening_token_ids or manifest.stop_token_ids[:1]
        self._stop = manifest.stop_token_ids[0]
        self._is_chat = False

    @property
    def eot_token_id(self) -> int:
        """The first token that ends an answer."""
        return int(self._stop)

    @property
    def prefix_token_id(self) -> int:
        """The token that a text without context follows."""
        return int(self._opening[-1])

    @property
    def tokenizer_name(self) -> str:
        """Model of the bundle, by which the harness caches requests."""
        return self._name.replace("/", "__")

    @property
    def _context(self) -> int:
        return self.engine.loaded.context

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Returns the text of a conversation; without that prompt, its last message goes on."""
        self._is_chat = True
        render = self.engine.loaded.encoder.render
        if add_generation_prompt:
            return render(chat_history)
        return render(chat_history[:-1]) + chat_history[-1]["content"]

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        """Returns the ids of a text; what a chat template made has its special tokens."""
        if self._is_chat:
            return self.engine.loaded.encoder.encode_marks(string)
        if add_special_tokens is False:
            return self.engine.tokenizer.encode(string)
        return self.engine.encode(string)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **_: Any
    ) -> list[Scored]:
        """Returns the scores of continuations; those of one context share its pass."""
        scores: list[Scored] = []
        for prompt, group in groupby(requests, key=lambda request: request[1]):
            scores += self._scores(prompt, [tokens for _, _, tokens in group])
        return scores

    def _scores(self, prompt: list[int], ends: Sequence[list[int]]) -> Iterable[Scored]:
        longest = max(map(len, ends))
        if longest >= self._context:
            raise EdgedecError(
                f"a continuation has {longest} tokens, the context {self._context}: "
                "pass --model_args context=N, or export with a larger --context"
            )
        if longest <= _MAX_TREE and len(prompt) + longest <= self._context:
            lending = self.engine.streams.lending
            return map(_scored, continuation_logprobs(lending, prompt, ends, n_top=1))
        return [self._score(prompt, end) for end in ends]

    def _score(self, prompt: list[int], end: list[int]) -> Scored:
        """Returns the score of one; a prompt loses its beginning as the harness cuts it."""
        tokens = [*prompt, *end][-self._context :]
        return _scored(self.engine.score(tokens, n_top=1)[-len(end) :])

    def loglikelihood_rolling(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Returns the log-probability of each text, in windows of the context."""
        totals = []
        for (text,) in (request.args for request in requests):
            windows = get_rolling_token_windows(
                self.tok_encode(text, add_special_tokens=False),
                self.prefix_token_id,
                self._context - 1,
                1,
            )
            pairs = [("", *make_disjoint_window(window)) for window in windows]
            totals.append(math.fsum(nats for nats, _ in self._loglikelihood_tokens(pairs)))
        return totals

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Returns what the model writes; requests that ask for the same share passes."""
        texts: list[str] = []
        for settings, group in groupby(requests, key=lambda request: request.args[1]):
            config = self._config(settings)
            room = self._context - config.max_new_tokens
            prompts = [self.tok_encode(request.args[0])[-room:] for request in group]
            texts += [answer.text for answer in self.engine.generate_many(prompts, config)]
        return texts

    def _config(self, settings: dict[str, Any]) -> GenerationConfig:
        """Returns a request of a task as ours; a ConfigError names what ours does not have."""
        kwargs = normalize_gen_kwargs(settings)
        if unknown := sorted(set(kwargs) - _REQUEST):
            raise ConfigError(f"the task asks for {', '.join(unknown)}, expected {_REQUEST}")
        if kwargs["max_gen_toks"] >= self._context:
            raise ConfigError(
                f"the task asks for {kwargs['max_gen_toks']} new tokens, the context is "
                f"{self._context}: pass --gen_kwargs max_gen_toks=N, or export with a larger "
                "--context"
            )
        sampling = {key: of(kwargs[key]) for key, of in _SAMPLING.items() if key in kwargs}
        return GenerationConfig(
            max_new_tokens=kwargs["max_gen_toks"],
            stop=tuple(kwargs["until"]),
            sampling=SamplingConfig(**sampling),
            method=self._method,
        )


def _scored(tokens: Sequence[TokenLogprob]) -> Scored:
    is_greedy = all(token.top[0][0] == token.token for token in tokens)
    return math.fsum(token.logprob for token in tokens), is_greedy


def main() -> None:
    """Runs `lm_eval`; errors of ours are one line."""
    try:
        cli_evaluate()
    except EdgedecError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
