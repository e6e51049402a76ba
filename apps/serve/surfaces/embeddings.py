"""Texts as vectors: OpenAI's `POST /v1/embeddings` and Ollama's `POST /api/embed`."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from edgedec.apps.serve.core import TextPrompt, invalid
from edgedec.apps.serve.surfaces import rows
from edgedec.apps.serve.surfaces.fields import Body, Others, TextPrompts, text_prompts
from edgedec.apps.serve.surfaces.ollama import Options, seconds
from edgedec.apps.serve.surfaces.surface import Document

Vectors = npt.NDArray[np.float32]

MAX_TEXTS = 2048
"""Most texts of one request, as OpenAI's."""


class EmbeddingsBody(Body):
    """The body of OpenAI's request. pooling: edgedec's own.

    normalize, embd_normalize, add_special_tokens: vLLM's and llama-server's; they have one value.
    """

    others: ClassVar[Others] = rows.EMBEDDINGS

    model: str = ""
    input: TextPrompts
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    pooling: Literal["mean", "last"] | None = None
    normalize: Literal[True] | None = None
    embd_normalize: Literal[2] | None = None
    add_special_tokens: Literal[True] | None = None

    def prompts(self) -> list[TextPrompt]:
        """Returns the texts.

        Raises:
            ServeError: There are none, too many, or vectors are to be shorter than they are.
        """
        if self.dimensions is not None:
            message = "dimensions is given, but this model's vectors have one length: leave it out"
            raise invalid(message, param="dimensions")
        return text_prompts(self.input, MAX_TEXTS)

    def document(self, n_tokens: Sequence[int], vectors: Vectors) -> Document:
        """Returns the answer. n_tokens: of each text."""
        pack = _base64 if self.encoding_format == "base64" else _floats
        data = [
            {"object": "embedding", "index": index, "embedding": pack(vector)}
            for index, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": sum(n_tokens), "total_tokens": sum(n_tokens)}
        return {"object": "list", "data": data, "model": self.model, "usage": usage}


class EmbedBody(Body):
    """The body of Ollama's request. Texts that do not fit the context are refused, never cut.

    options: those of sampling change nothing about vectors.
    """

    others: ClassVar[Others] = rows.EMBED

    model: str
    input: str | list[str]
    keep_alive: str | float | None = None
    options: Options | None = None

    def prompts(self) -> list[TextPrompt]:
        """Returns the texts.

        Raises:
            ServeError: There are none, or too many.
        """
        return text_prompts(self.input, MAX_TEXTS)

    @property
    def keep_alive_s(self) -> float | None:
        """How long the model stays loaded."""
        return None if self.keep_alive is None else seconds(self.keep_alive)

    def document(self, n_tokens: Sequence[int], vectors: Vectors) -> Document:
        """Returns the answer. n_tokens: of each text."""
        found = [_floats(vector) for vector in vectors]
        return {"model": self.model, "embeddings": found, "prompt_eval_count": sum(n_tokens)}


class OldEmbedBody(Body):
    """The body of Ollama's older request, for one text."""

    others: ClassVar[Others] = rows.EMBED

    model: str
    prompt: str
    keep_alive: str | float | None = None
    options: Options | None = None

    def prompts(self) -> list[TextPrompt]:
        """Returns the text."""
        return [TextPrompt(self.prompt)]

    @property
    def keep_alive_s(self) -> float | None:
        """How long the model stays loaded."""
        return None if self.keep_alive is None else seconds(self.keep_alive)

    def document(self, n_tokens: Sequence[int], vectors: Vectors) -> Document:
        """Returns the answer. n_tokens: of the text."""
        return {"embedding": _floats(vectors[0]) if len(vectors) else []}


def _floats(vector: Vectors) -> list[Any]:
    return list(vector.astype(float))


def _base64(vector: Vectors) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
