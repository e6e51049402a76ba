"""Checkpoints of the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from edgedec.models.errors import CheckpointError

WANTED_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "README.md",
    "model.safetensors.index.json",
    "model*.safetensors",
)


def fetch_snapshot(hub_id: str) -> Path:
    """Returns the local folder of the hub model ``hub_id``, downloaded if needed.

    Raises:
        CheckpointError: huggingface_hub is not installed, there is no network, or the hub
            refuses.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise CheckpointError(
            f"{hub_id} looks like a hub id, but huggingface_hub is not installed; "
            f"run: pip install 'edgedec[export]'"
        ) from None
    try:
        return Path(snapshot_download(hub_id, allow_patterns=list(WANTED_FILES)))
    except Exception as error:  # its errors share no base: HTTP, offline mode, cache, disk
        reason = (str(error).splitlines() or [""])[0][:160] or type(error).__name__
        raise CheckpointError(
            f"cannot download {hub_id}: {reason.rstrip('.')}; check the id and the network, or "
            f"pass a folder or GGUF file that is already here"
        ) from None
