"""What `edgedec train adapt` keeps beside a bundle: the head before, and which texts were used."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from edgedec.models.bundle_files import check_file, check_hash
from edgedec.models.errors import BundleError, ConfigError
from edgedec.models.manifest import MANIFEST_NAME, BundleManifest, fingerprint_of, read_manifest
from edgedec.runtime.engine.replay_buffer import ReplayBuffer
from edgedec.system.files import replace_text
from edgedec.system.locks import lock_folder
from edgedec.training.variant import put_variant

N_NEW = 16
"""Texts that have to be new for a training to be worth its time."""

_STATE = "texts.json"
_BEFORE = "before"


@dataclass(frozen=True)
class UsedTexts:
    """Numbers of texts. learned: the last one of the latest training. begun: of one under way."""

    learned: int = 0
    begun: int = 0


class AdaptFolder:
    """A hidden folder beside a bundle, which one process at a time may use."""

    def __init__(self, bundle: Path) -> None:
        bundle = bundle.absolute()
        self.bundle = bundle.resolve() if bundle.is_symlink() else bundle
        self.path = self.bundle.with_name(f".{self.bundle.name}.adapt")

    @property
    def features(self) -> Path:
        """The folder of the texts of a training under way, and of what it computed of them."""
        return self.path / "features"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Makes the folder, which no other process may use in the block.

        Raises:
            ConfigError: Another one does, or the folder cannot be made.
        """
        try:
            self.path.mkdir(mode=0o700, exist_ok=True)
            lock = lock_folder(self.path)
        except OSError as error:
            raise ConfigError(f"cannot make {self.path}: {error.strerror}") from None
        if lock is None:
            raise ConfigError(f"another process trains the head of {self.bundle}: wait for it")
        try:
            yield
        finally:
            os.close(lock)

    @property
    def is_in_use(self) -> bool:
        """Whether another process trains the head."""
        try:
            lock = lock_folder(self.path)
        except OSError:
            return False
        if lock is not None:
            os.close(lock)
        return lock is None

    @property
    def used(self) -> UsedTexts:
        """The texts that were used; of a damaged file none."""
        try:
            numbers = json.loads((self.path / _STATE).read_bytes())
            return UsedTexts(int(numbers["learned"]), int(numbers["begun"]))
        except (OSError, ValueError, LookupError, TypeError):
            return UsedTexts()

    def begin(self, buffer: ReplayBuffer) -> int:
        """Returns the number of the last text to use: of a training under way, or the latest.

        Raises:
            ConfigError: Too few texts are new.
        """
        used, numbers = self.used, buffer.numbers()
        if used.begun > used.learned and used.begun in numbers:
            return used.begun
        n_new = sum(number > used.learned for number in numbers)
        if n_new < N_NEW:
            raise ConfigError(
                f"{buffer.path} has {n_new} texts that the head has not seen, expected at least "
                f"{N_NEW}: collect more with --adapt"
            )
        self._note(replace(used, begun=numbers[-1]))
        return numbers[-1]

    def end(self, last: int) -> None:
        """Notes that a training with texts up to ``last`` has ended."""
        self._note(UsedTexts(last, last))

    def has_news(self, buffer: ReplayBuffer) -> bool:
        """Says whether `begin` would find enough, without changing anything."""
        try:
            numbers = buffer.numbers()
        except ConfigError:  # no text was kept yet, or the file is none; training says which
            return False
        used = self.used
        is_under_way = used.begun > used.learned and used.begun in numbers
        return is_under_way or sum(number > used.learned for number in numbers) >= N_NEW

    def keep_head(self, manifest: BundleManifest) -> None:
        """Keeps the head of the bundle as it is now, in place of one that was kept before."""
        assert manifest.head is not None
        new, old = self.path / f"{_BEFORE}.new", self.path / _BEFORE
        shutil.rmtree(new, ignore_errors=True)
        for name in (MANIFEST_NAME, *_own_files(manifest)):
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.bundle / name, new / name)
        shutil.rmtree(old, ignore_errors=True)
        new.rename(old)

    def restore_head(self) -> BundleManifest:
        """Puts the head that was kept into the bundle again; returns the bundle's manifest.

        Raises:
            ConfigError: None was kept, or the bundle has another model since then.
            BundleError: The bundle or the kept head is broken, or the bundle cannot be written.
        """
        before, now, kept = self.path / _BEFORE, read_manifest(self.bundle), self.kept()
        if fingerprint_of(kept, kept.target_name) != fingerprint_of(now, now.target_name):
            raise ConfigError(
                f"{self.bundle} was exported anew and has another model: the earlier head does "
                "not fit"
            )
        assert kept.head is not None
        names = _own_files(kept)
        for name in names:
            check_file(before, name, kept.files[name])
            check_hash(before, name, kept.files[name])

        def write(folder: Path) -> None:
            for name in names:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(before / name, folder / name)

        gone = now.head.files if now.head is not None else ()
        new = replace(now, head=kept.head)
        sealed = put_variant(self.bundle, new, gone, kept.head.files, write, self.bundle, True)
        shutil.rmtree(before, ignore_errors=True)
        return sealed

    def kept(self) -> BundleManifest:
        """Returns the manifest that the bundle had with the head that was kept.

        Raises:
            ConfigError: None was kept.
            BundleError: It cannot be read.
        """
        before = self.path / _BEFORE
        try:
            fields = json.loads((before / MANIFEST_NAME).read_bytes())
        except FileNotFoundError:
            raise ConfigError(
                f"there is no earlier head of {self.bundle}: nothing was changed since it was "
                "exported, or that was undone"
            ) from None
        except (OSError, ValueError, RecursionError) as error:
            raise BundleError(f"cannot read {before / MANIFEST_NAME}: {error}") from None
        return BundleManifest.from_dict(fields)

    def _note(self, used: UsedTexts) -> None:
        replace_text(self.path / _STATE, json.dumps(asdict(used)), is_private=True)


def _own_files(manifest: BundleManifest) -> list[str]:
    """Returns the files of a bundle's head that are not the target model's, too."""
    assert manifest.head is not None
    return [name for name in manifest.head.files if name not in manifest.target.files]
