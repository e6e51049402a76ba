"""Which kind of published draft head a folder holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edgedec.export.checkpoints.json_files import read_fields
from edgedec.export.heads.dflash import read_dflash
from edgedec.export.heads.eagle3 import read_eagle3
from edgedec.export.heads.head_folder import HeadFolder
from edgedec.export.heads.pard2 import read_pard2
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.fields import Fields

_READERS: dict[str, Callable[[Path, Fields], HeadFolder]] = {
    "LlamaForCausalLMEagle3": read_eagle3,
    "Eagle3LlamaForCausalLM": read_eagle3,
    "DFlashDraftModel": read_dflash,
    "QwenDFlashDraftModel": read_dflash,
    "DFlash2DraftModel": read_dflash,
    "DSparkDraftModel": read_dflash,
    "Qwen3DSparkModel": read_dflash,
}

_UNREAD = {
    "Gemma4AssistantForCausalLM": "reads the keys and values that Gemma 4 itself keeps",
    "Gemma4DSparkModel": "is a DSpark drafter of Gemma's layers, and only Qwen3's are read",
    "DominoDraftModel": "corrects the tokens of a block with a recurrent network",
}
"""What publishers ship besides, and what it does that is not computed here."""


def read_published_head(folder: Path) -> HeadFolder:
    """Returns the head that a folder holds.

    Raises:
        CheckpointError: There is none, or it is damaged.
        UnsupportedModelError: It computes what is not read.
    """
    name, fields = folder.resolve().name, read_fields(folder, "config.json")
    classes = fields.texts("architectures")
    if fields.get("spd_type") == "pard2" or fields.get("pard2"):
        return read_pard2(folder, fields)
    for architecture in classes:
        if (read := _READERS.get(architecture)) is not None:
            return read(folder, fields)
        if (reason := _UNREAD.get(architecture)) is not None:
            raise UnsupportedModelError(
                f"{name}: a {architecture} {reason}. Leave out --head: `auto` drafts without it"
            )
    raise CheckpointError(
        f"{name} is no draft head that is read, but {', '.join(classes) or 'nothing'}: name a "
        f"folder whose config.json says {' or '.join(_READERS)}, or a file of `train head "
        "--head-file`"
    )
