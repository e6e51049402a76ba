"""What a bundle keeps of its publishers' texts: tokenizers, chat template, recommendations."""

from __future__ import annotations

import json
from pathlib import Path

from edgedec.export.phases.model_export import ModelExport
from edgedec.models.manifest import TOKENIZER_NAME


def read_target(model: ModelExport) -> None:
    """The tokenizer, the chat template, the stop tokens and the sampling, as published."""
    folder, published = model.bundle_folder, model.published
    _write(folder / TOKENIZER_NAME, published.tokenizer_json())
    if (template := published.chat_template()) is not None:
        _write(folder / "chat_template.jinja", template)
    model.warnings += published.unapplied
    model.embedding = published.embedding
    special = published.special
    settings = {
        "eos_token_id": list(special.eos_ids),
        **published.sampling,
    }
    _write(folder / "generation_config.json", json.dumps(settings, indent=2))
    model.folder.mkdir()


def read_draft(model: ModelExport) -> None:
    """The tokenizer, where it is another than the target model's."""
    model.folder.mkdir()
    tokenizer = model.published.tokenizer_json()
    if tokenizer != (model.bundle_folder / TOKENIZER_NAME).read_text(encoding="utf-8"):
        _write(model.folder / TOKENIZER_NAME, tokenizer)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")
