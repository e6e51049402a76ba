"""Models of the Hugging Face hub: what is fetched, checked and refused."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any

from edgedec.export.checkpoints.sentence_files import SENTENCE_FILES
from edgedec.models.errors import CheckpointError, EdgedecError

TEMPLATE_FILES = ("chat_template.jinja", "additional_chat_templates/tool_use.jinja")
"""Where templates lie: that of conversations, and that of those with tools."""
WANTED_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    *TEMPLATE_FILES,
    "chat_template.json",
    *SENTENCE_FILES,
    "README.md",
    "model.safetensors.index.json",
    "model*.safetensors",
)
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
"""Suffixes of files whose reading may run code."""

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_PART = re.compile(r"(.+)-\d{5}-of-(\d{5})\.gguf", re.DOTALL)
_MAX_NAMED = 8
_UNREACHABLE = (
    "ConnectionError", "ConnectTimeout", "ConnectError", "ReadTimeout", "OfflineModeIsEnabled",
    "ProxyError", "SSLError",
)  # fmt: skip
"""Names of errors that mean no network; their modules depend on the version of the package."""


@dataclass(frozen=True)
class HubName:
    """A model of the hub: ``org/name``, and of several GGUF files in it the one that is meant."""

    hub_id: str
    file: str = ""

    @classmethod
    def parse(cls, text: str) -> HubName | None:
        """Returns what ``org/name`` or ``org/name:FILE`` names, None if ``text`` is neither."""
        hub_id, _, file = text.partition(":")
        path = PureWindowsPath(file)  # which takes both kinds of slashes, and drives
        is_inside = not path.anchor and ".." not in path.parts
        if not _HUB_ID.fullmatch(hub_id) or not is_inside or (":" in text and not file):
            return None
        return None if Path(hub_id).suffix in (".gguf", ".safetensors") else cls(hub_id, file)

    def __str__(self) -> str:
        return f"{self.hub_id}:{self.file}" if self.file else self.hub_id


@dataclass(frozen=True)
class Fetched:
    """A model that was fetched. source: what can be exported, a file or a folder."""

    name: HubName
    source: Path
    revision: str
    licence: str | None
    n_bytes: int


def fetch(name: HubName, shows_bars: bool = False) -> Fetched:
    """Returns the hub model ``name``, downloaded as far as it is not here, and checked.

    A download that was cut off goes on where it ended.

    Raises:
        CheckpointError: huggingface_hub is not installed, there is no network, the hub refuses, a
            file has another hash than the hub states, or the model has nothing that is read.
    """
    try:
        import huggingface_hub as hub
        from huggingface_hub.utils.tqdm import disable_progress_bars
    except ImportError:
        raise CheckpointError(
            f"{name} looks like a hub id, but huggingface_hub is not installed; "
            "run: pip install huggingface_hub"
        ) from None
    if not shows_bars:
        disable_progress_bars()
    try:
        info = hub.model_info(name.hub_id, files_metadata=True)
        files = choose_files(name, [sibling.rfilename for sibling in info.siblings or ()])
        folder = Path(
            hub.snapshot_download(name.hub_id, revision=info.sha, allow_patterns=list(files))
        )
        _check_hashes(folder, info.siblings or (), files)
    except EdgedecError:
        raise
    except Exception as error:  # its errors share no base: HTTP, offline mode, cache, disk
        if (earlier := _fetched_before(name)) is not None:
            return earlier
        raise CheckpointError(_explained(name, error)) from None
    return _fetched(name, folder, files, str(info.sha), _licence(info))


def _fetched_before(name: HubName) -> Fetched | None:
    """Returns what the latest fetch left on this machine, None if that is nothing whole."""
    from huggingface_hub import scan_cache_dir

    try:
        repos = [repo for repo in scan_cache_dir().repos if repo.repo_id == name.hub_id]
        # What was fetched is known by its revision alone, for that is how it was asked for.
        revisions = [revision for repo in repos for revision in repo.revisions]
        latest = max(revisions, key=lambda revision: revision.last_modified)
        folder = latest.snapshot_path
        here = [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()]
        return _fetched(name, folder, choose_files(name, here), latest.commit_hash, None)
    except Exception:  # whatever it is, the reason that it was not fetched now says more
        return None


def _fetched(
    name: HubName, folder: Path, files: list[str], revision: str, licence: str | None
) -> Fetched:
    n_bytes = sum((folder / file).stat().st_size for file in files)
    return Fetched(name, folder / name.file if name.file else folder, revision, licence, n_bytes)


def choose_files(name: HubName, files: list[str]) -> list[str]:
    """Returns which of a model's ``files`` are fetched.

    Raises:
        CheckpointError: none can be read, or it has to be said which.
    """
    if name.file:
        return _parts(name, files)
    usable = [file for file in files if any(Path(file).match(p) for p in WANTED_FILES)]
    usable = [file for file in usable if "/" not in file]
    if any(file.endswith(".safetensors") for file in usable):
        return usable
    if ggufs := sorted(file for file in files if file.endswith(".gguf")):
        more = ", ..." if len(ggufs) > _MAX_NAMED else ""
        raise CheckpointError(
            f"{name} holds GGUF files: name one, as in {name}:{ggufs[0]}; there are "
            f"{', '.join(ggufs[:_MAX_NAMED])}{more}"
        )
    pickles = [file for file in files if file.endswith(PICKLES)]
    holds = f"only pickled weights ({pickles[0]}), which may run code" if pickles else "no weights"
    raise CheckpointError(
        f"{name} holds {holds}; expected *.safetensors or *.gguf: choose another model"
    )


def _parts(name: HubName, files: list[str]) -> list[str]:
    """Returns the file that is named, with its siblings if it is one part of several."""
    if name.file.endswith(PICKLES) or not name.file.endswith(".gguf"):
        raise CheckpointError(
            f"{name.file} is not a GGUF file; name one, or leave the file out for *.safetensors: "
            f"pickled weights may run code and are not read"
        )
    if name.file not in files:
        known = ", ".join(sorted(file for file in files if file.endswith(".gguf"))[:_MAX_NAMED])
        raise CheckpointError(
            f"{name.hub_id} holds no {name.file}; its GGUF files are: {known or 'none'}"
        )
    part = _PART.fullmatch(name.file)
    if part is None:
        return [name.file]
    like = re.compile(rf"{re.escape(part[1])}-\d{{5}}-of-{part[2]}\.gguf")
    return sorted(file for file in files if like.fullmatch(file))


def _check_hashes(folder: Path, siblings: Any, files: list[str]) -> None:
    siblings_by_name = {sibling.rfilename: sibling for sibling in siblings}
    for file in files:
        lfs, blob_id = (
            getattr(siblings_by_name[file], "lfs", None),
            getattr(siblings_by_name[file], "blob_id", None),
        )
        path = folder / file
        if lfs is not None:
            expected, got = lfs["sha256"], _digest(path, hashlib.sha256())
        elif blob_id is not None:
            header = f"blob {path.stat().st_size}\0".encode()
            expected, got = blob_id, _digest(path, hashlib.sha1(header, usedforsecurity=False))
        else:
            continue
        if got != expected:
            damaged = path.resolve()
            path.unlink()
            damaged.unlink(missing_ok=True)
            raise CheckpointError(
                f"{file} was damaged on its way: its hash is {got[:16]}..., the hub states "
                f"{expected[:16]}...; it was removed, fetch it again"
            )


def _digest(path: Path, digest: Any) -> str:
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return str(digest.hexdigest())


def _licence(info: Any) -> str | None:
    licence = info.card_data.to_dict().get("license") if info.card_data is not None else None
    tags = [tag.removeprefix("license:") for tag in info.tags or () if tag.startswith("license:")]
    return str(licence) if licence else next(iter(tags), None)


def _explained(name: HubName, error: Exception) -> str:
    from huggingface_hub import constants
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    if isinstance(error, GatedRepoError):
        return (
            f"{name.hub_id} asks that its licence be accepted: do so at "
            f"{constants.ENDPOINT}/{name.hub_id}, and set HF_TOKEN"
        )
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"there is no {name.hub_id} at {constants.ENDPOINT}, or it is private: check the id, "
            f"or set HF_TOKEN"
        )
    if type(error).__name__ in _UNREACHABLE:
        return (
            f"cannot reach {constants.ENDPOINT} to download {name}: check the network, or pass a "
            f"folder or GGUF file that is already here"
        )
    reason = (str(error).splitlines() or [""])[0][:160] or type(error).__name__
    return (
        f"cannot download {name}: {reason.rstrip('.')}; check the id and the network, or "
        f"pass a folder or GGUF file that is already here"
    )
