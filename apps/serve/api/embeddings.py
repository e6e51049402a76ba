"""Texts as vectors: OpenAI's `POST /v1/embeddings` and Ollama's `POST /api/embed`."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from edgedec.apps.serve.api import rows
from edgedec.apps.serve.api.endpoint import Document
from edgedec.apps.serve.api.fields import Body, Others, TextPrompts, text_prompts
from edgedec.apps.serve.api.ollama import Options, seconds
from edgedec.apps.serve.core import TextPrompt, invalid
from edgedec.models.fields import shown
from edgedec.models.pooling import EmbeddingConfig, Pooling
from edgedec.runtime.engine.embeddings import EmbeddingOptions

Vectors = npt.NDArray[np.float32]

MAX_TEXTS = 2048
"""Most texts of one request, as OpenAI's."""


class EmbeddingsBody(Body):
    """The body of OpenAI's request. pooling: edgedec's own.

    input_type: what the texts are for, as Cohere, NIM and LiteLLM say it. prompt_name: the same as
    TEI says it, by the model's own names. truncate_prompt_tokens, truncate: of vLLM, TEI and NIM.
    normalize, embd_normalize, add_special_tokens: vLLM's and llama-server's; they have one value.
    """

    others: ClassVar[Others] = rows.EMBEDDINGS

    model: str = ""
    input: TextPrompts
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    pooling: Pooling | None = None
    input_type: str | None = None
    prompt_name: str | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    truncate: Literal[True, False, "NONE", "END"] | None = None
    normalize: Literal[True] | None = None
    embd_normalize: Literal[2] | None = None
    add_special_tokens: Literal[True] | None = None

    def prompts(self) -> list[TextPrompt]:
        """Returns the texts.

        Raises:
            ServeError: There are none, or too many.
        """
        return text_prompts(self.input, MAX_TEXTS)

    def options_of(self, embedding: EmbeddingConfig | None) -> EmbeddingOptions:
        """Returns how a model becomes the texts' vectors. stated: what the model says of it.

        Raises:
            ServeError: The model has no such prompt, or its vectors have one length.
        """
        check_dimensions(self.dimensions, embedding)
        is_cut, most = self.truncate in (True, "END"), self.truncate_prompt_tokens
        if most is not None:
            is_cut, most = True, max(most, 0)
        return EmbeddingOptions(
            pooling=self.pooling,
            prompt_name=prompt_of(embedding, self.prompt_name, self.input_type),
            most_tokens=(most or 0) if is_cut else None,
            n_dimensions=self.dimensions,
        )

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
    """The body of Ollama's request. Texts that do not fit the context are cut, as in Ollama.

    truncate: false refuses them. options: those of sampling change nothing about vectors.
    """

    model: str
    input: str | list[str] = ""
    truncate: bool | None = None
    dimensions: Annotated[int, Field(ge=0)] | None = None
    keep_alive: str | float | None = None
    options: Options | None = None

    def prompts(self) -> list[TextPrompt]:
        """Returns the texts; none where the model is to be loaded alone, as in Ollama.

        Raises:
            ServeError: There are too many.
        """
        return text_prompts(self.input, MAX_TEXTS) if self.input else []

    def options_of(self, embedding: EmbeddingConfig | None) -> EmbeddingOptions:
        """Returns how a model becomes the texts' vectors. stated: what the model says of it.

        Raises:
            ServeError: The model's vectors have one length.
        """
        dimensions = self.dimensions or None
        check_dimensions(dimensions, embedding)
        return EmbeddingOptions(
            most_tokens=None if self.truncate is False else 0, n_dimensions=dimensions
        )

    @property
    def keep_alive_s(self) -> float | None:
        """How long the model stays loaded."""
        return None if self.keep_alive is None else seconds(self.keep_alive)

    def document(self, n_tokens: Sequence[int], vectors: Vectors) -> Document:
        """Returns the answer. n_tokens: of each text."""
        encoded = [_floats(vector) for vector in vectors]
        return {"model": self.model, "embeddings": encoded, "prompt_eval_count": sum(n_tokens)}


class OldEmbedBody(Body):
    """The body of Ollama's older request, for one text."""

    others: ClassVar[Others] = rows.OLD_EMBED

    model: str
    prompt: str = ""
    keep_alive: str | float | None = None
    options: Options | None = None

    def prompts(self) -> list[TextPrompt]:
        """Returns the text, or none where the model is to be loaded alone."""
        return [TextPrompt(self.prompt)] if self.prompt else []

    def options_of(self, embedding: EmbeddingConfig | None) -> EmbeddingOptions:
        """Returns how a model becomes the text's vector; a long text is cut, as in Ollama."""
        return EmbeddingOptions(most_tokens=0)

    @property
    def keep_alive_s(self) -> float | None:
        """How long the model stays loaded."""
        return None if self.keep_alive is None else seconds(self.keep_alive)

    def document(self, n_tokens: Sequence[int], vectors: Vectors) -> Document:
        """Returns the answer. n_tokens: of the text."""
        return {"embedding": _floats(vectors[0]) if len(vectors) else []}


def check_dimensions(dimensions: int | None, embedding: EmbeddingConfig | None) -> None:
    """Raises a ServeError for another length of vectors than the model can have."""
    if dimensions is not None and embedding is None:
        message = "dimensions: this model's vectors have one length: leave it out"
        raise invalid(message, param="dimensions")


_PURPOSES = {
    "query": ("query", "search_query"),
    "search_query": ("query", "search_query"),
    "document": ("document", "passage", "search_document"),
    "passage": ("document", "passage", "search_document"),
    "search_document": ("document", "passage", "search_document"),
    "classification": ("classification", "Classification"),
    "clustering": ("clustering", "Clustering"),
}
"""What clients call a purpose -> what models call its prompt."""


def prompt_of(
    embedding: EmbeddingConfig | None, prompt_name: str | None, input_type: str | None
) -> str | None:
    """Returns the name of the model's prompt that a request asks for; None for the default one.

    A model without prompts, and one that has none for queries or documents, reads those as they
    are.

    Raises:
        ServeError: The model has no prompt of that name.
    """
    known = {} if embedding is None else embedding.prompts
    for param, value in (("prompt_name", prompt_name), ("input_type", input_type)):
        if value is None:
            continue
        names = (value, *_PURPOSES.get(value, ())) if param == "input_type" else (value,)
        if name := next((name for name in names if name in known), None):
            return name
        if value in _PURPOSES and param == "input_type" and not known:
            continue
        expected = f"one of: {', '.join(sorted(known))}" if known else "none: it has no prompts"
        message = f"{param}: this model has no prompt {shown(value)}, expected {expected}"
        raise invalid(message, param=param)
    return None


def _floats(vector: Vectors) -> list[Any]:
    return list(vector.astype(float))


def _base64(vector: Vectors) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
