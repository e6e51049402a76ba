"""From the KV maps of a bundle to a bundle with better ones, and a better model that reads."""

from __future__ import annotations

import dataclasses
import math
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt
import torch

from edgedec.export.heads.bundle_weights import BundleWeights
from edgedec.export.quantising.quantise import quantize_rows
from edgedec.kernels import pack
from edgedec.labs.joint.stored_maps import read_maps
from edgedec.labs.joint.torch_maps import Losses, MappedModel
from edgedec.models.bundle_files import FileEntry, file_sha256
from edgedec.models.draft_heads import OF_MODEL
from edgedec.models.errors import ConfigError
from edgedec.models.kv_maps import (
    AUXILIARY_KV_MAPS,
    DRAFT_KV_MAPS,
    KV_MAPS,
    MapsEntry,
    ModelKVMapsEntry,
)
from edgedec.models.manifest import BundleManifest, fingerprint_of
from edgedec.models.model_entry import ModelEntry
from edgedec.models.quant import FORMATS, QuantFormat, ScaleKind
from edgedec.training.features.feature_file import TextFeatures, parted
from edgedec.training.heads.torch_head import TorchWeights
from edgedec.training.kv_maps.kv_maps import LayerMaps, Scales, write_kv_maps
from edgedec.training.loop import (
    Batch,
    Lessons,
    Measured,
    OnProgress,
    Trainer,
    TrainingPlan,
)
from edgedec.training.progress_file import ProgressFile
from edgedec.training.variant import put_variant

Float32 = npt.NDArray[np.float32]

_STEM = "auxiliary/joint"
_WRITABLE = (ScaleKind.ONE, ScaleKind.ONE_MIN)


@dataclass(frozen=True)
class Score:
    """What maps lose on texts that they were not trained on; fields as of `Losses`."""

    target: float
    reader: float
    rows: float
    agreement: float
    missed: float

    @property
    def total(self) -> float:
        """What is made small."""
        return self.target + self.reader + self.rows


@dataclass(frozen=True)
class TrainedMaps:
    """Maps and what they read rows with; the reader's weights; scores before and after."""

    maps: tuple[LayerMaps, ...]
    scales: Scales | None
    reader: dict[str, Float32]
    n_tokens: int
    before: Score
    after: Score
    is_finite: bool


def maps_of(manifest: BundleManifest) -> MapsEntry:
    """Returns the maps that can be trained; raises a ConfigError where there are none."""
    for kind in (KV_MAPS, AUXILIARY_KV_MAPS):
        if kind in manifest.auxiliary:
            return manifest.auxiliary[kind]
    raise ConfigError(
        "this bundle has no KV maps to begin with: fit them with `edgedec train kv`, for a smaller "
        "model that reads with --auxiliary"
    )


def train_maps(
    bundle: Path,
    manifest: BundleManifest,
    texts: Sequence[list[int]],
    plan: TrainingPlan,
    file: Path,
    report: OnProgress,
    is_over: Callable[[], bool],
) -> TrainedMaps:
    """Returns the maps of ``bundle``, and the smaller model that they read, trained on ``texts``.

    file: where the training stands, and goes on.

    Raises:
        ConfigError: The bundle has no maps, there are too few texts, or a model's weights cannot be
            written.
        OSError: The disk is full.
    """
    entry, target = maps_of(manifest), manifest.target
    lessons = _lessons(texts, target.config.vocab_size)
    maps, scales = read_maps(bundle, entry, target.config.hidden_size)
    n_most = max(map(len, texts))
    reader = None
    if entry.kind == AUXILIARY_KV_MAPS:
        assert manifest.draft_name is not None
        draft = manifest.models[manifest.draft_name]
        _check_writable(draft)
        reader = TorchWeights(draft.config, _weights(bundle, draft), n_most)
    weights = _weights(bundle, target)
    model = MappedModel(target.config, weights, n_most, maps, scales, reader)
    known = plan, entry, [list(text) for text in texts]
    trainer = _Trainer(model, lessons, plan, ProgressFile(file, known))
    report("measure", 0, 0)
    before = trainer.start()
    trained = trainer.run(report, is_over)
    trainer.take(trained.weights)
    own = {name.removeprefix("reader/"): w for name, w in trained.weights.items() if name[0] == "r"}
    return TrainedMaps(
        tuple(
            dataclasses.replace(
                m,
                weights=trained.weights[f"maps/{m.layer}/weight"],
                bias=trained.weights[f"maps/{m.layer}/bias"],
            )
            for m in maps
        ),
        scales,
        own,
        lessons.n_tokens,
        before,
        trainer.score_of(trained.measured),
        trained.is_finite,
    )


class _Trainer(Trainer):
    """Trains by the losses of KV Prediction; the best is what loses least."""

    def __init__(
        self, model: MappedModel, lessons: Lessons, plan: TrainingPlan, file: ProgressFile
    ) -> None:
        super().__init__(model, lessons, plan, file, is_start_worth_keeping=True)
        self._model = model
        self._start: Score | None = None
        self._scores = dict[float, Score]()

    def start(self) -> Score:
        """Returns what is lost before the training."""
        self._start = self.score()
        return self._start

    def score_of(self, measured: Measured) -> Score:
        """Returns what is lost with the weights it has, which were ``measured`` now or long ago."""
        return self._scores.get(measured.by_depth[0]) or self.score()

    @torch.no_grad()
    def score(self) -> Score:
        """Returns what is lost on the texts held out, on average over them."""
        found = [self._losses(self._batch([text])) for text in self._lessons.held_out]
        means = {
            field.name: float(np.mean([float(getattr(losses, field.name)) for losses in found]))
            for field in dataclasses.fields(Score)
        }
        return Score(**means)

    def take(self, weights: dict[str, Float32]) -> None:
        """Goes on with ``weights``."""
        with torch.no_grad():
            for name, parameter in self._model.trained().items():
                parameter.copy_(torch.from_numpy(weights[name]))

    def _in_words(self, measured: Measured) -> str:
        return f"held out {-math.log(measured.by_depth[0]):.2f}"

    def _losses(self, batch: Batch) -> Losses:
        found: Losses = self._model(batch.tokens, batch.is_real)
        return found

    def _loss(self, batch: Batch) -> torch.Tensor:
        return self._losses(batch).total

    def _measured(self) -> Measured:
        # One number that is larger where less is lost, in the place of a share of drafts.
        score = self._start if self._start and self._step == 0 else self.score()
        share = math.exp(-score.total)
        self._scores[share] = score
        return Measured((share,), 1.0, {})


def _lessons(texts: Sequence[list[int]], vocab_size: int) -> Lessons:
    """Returns texts, all of whose tokens have a row of their own."""
    read = [
        TextFeatures(
            "",
            np.array(text, np.int32),
            np.zeros((len(text), 0), np.float16),
            np.zeros((len(text), 0), np.int32),
            np.zeros((len(text), 0), np.float16),
        )
        for text in texts
    ]
    trained, held_out = parted(read)
    ids = np.arange(vocab_size)
    return Lessons(trained, held_out, ids, ids[:0])


def _weights(bundle: Path, entry: ModelEntry) -> dict[str, Float32]:
    """Returns all weights of a model, by name."""
    stored = BundleWeights(bundle, entry)
    return {
        name: stored.matrix(name) if len(shape) == 2 else stored.vector(name)
        for name, shape in stored.shapes.items()
    }


def _check_writable(entry: ModelEntry) -> None:
    """Raises a ConfigError where a matrix has a format that floats are not made into."""
    for name, of in entry.tensor_formats.items():
        if name not in OF_MODEL and FORMATS[of].kind not in _WRITABLE:
            raise ConfigError(
                f"the draft model has {name} as {of}, to which nothing can be quantised anew: "
                "export it from floats, or with --draft-quantization int8"
            )


def put_maps(
    bundle: Path,
    manifest: BundleManifest,
    trained: TrainedMaps,
    corpus: str,
    destination: Path,
    is_overwrite_allowed: bool,
) -> MapsEntry:
    """Writes a bundle that has ``trained`` beside all that ``bundle`` has; returns what it states.

    Maps to the draft model go where that is another model now.

    Raises:
        BundleError: The destination cannot be written; whatever was there is untouched.
    """
    old = maps_of(manifest)
    with tempfile.TemporaryDirectory(dir=destination.absolute().parent) as scratch:
        made = Path(scratch)
        own = _write_maps(manifest, trained, made)
        graph, weights = own[:2]
        gone = list(old.files)
        auxiliary = dict(manifest.auxiliary)
        if trained.reader:
            own.append(_write_reader(bundle, manifest, trained.reader, made))
            gone.append(own[-1])
            if (stale := auxiliary.pop(DRAFT_KV_MAPS, None)) is not None:
                gone += stale.files
        files = {path: e for path, e in manifest.files.items() if path not in gone}
        files |= {p: FileEntry((made / p).stat().st_size, file_sha256(made / p)) for p in own}
        changed = dataclasses.replace(manifest, files=files)
        entry = dataclasses.replace(
            old,
            graph=graph,
            weights=weights,
            corpus=corpus,
            n_tokens=old.n_tokens + trained.n_tokens,
            held_out=round(trained.after.missed, 4),
        )
        if isinstance(entry, ModelKVMapsEntry):
            assert manifest.draft_name is not None
            source = fingerprint_of(changed, manifest.draft_name)
            entry = dataclasses.replace(entry, source=source)
        new = dataclasses.replace(manifest, auxiliary={**auxiliary, entry.kind: entry})

        def write(folder: Path) -> None:
            for path in own:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.move(made / path, folder / path)

        put_variant(bundle, new, gone, own, write, destination, is_overwrite_allowed)
    return entry


def _write_maps(manifest: BundleManifest, trained: TrainedMaps, folder: Path) -> list[str]:
    """Writes the maps into ``folder``; returns the paths of their graph and weights there."""
    beside = PurePosixPath(_STEM).parent
    (folder / beside).mkdir()
    names = write_kv_maps(
        folder / beside,
        PurePosixPath(_STEM).name,
        manifest.target.config,
        manifest.target.context,
        manifest.target.contract.kv.format,
        trained.maps,
        trained.scales,
    )
    return [f"{beside}/{name}" for name in names]


def _write_reader(
    bundle: Path, manifest: BundleManifest, weights: dict[str, Float32], folder: Path
) -> str:
    """Writes the draft model's file with ``weights`` in their places; returns its path."""
    assert manifest.draft_name is not None
    entry = manifest.models[manifest.draft_name]
    stored, path = BundleWeights(bundle, entry), entry.weights[0]
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(bundle / path, folder / path)
    with (folder / path).open("r+b") as file:
        for name, values in weights.items():
            place = stored.place(name)
            assert PurePosixPath(place["location"]).name == PurePosixPath(path).name
            written = _packed(values, entry.format_of(name)) if values.ndim == 2 else values
            assert written.nbytes == int(place["length"])
            file.seek(int(place["offset"]))
            file.write(written.tobytes())
    return path


def _packed(values: Float32, fmt: QuantFormat) -> npt.NDArray[np.uint8]:
    plain = quantize_rows(values, fmt)
    return pack(
        fmt.index, plain.codes, plain.scale, plain.minimum, plain.sub_scale,
        plain.sub_minimum,
    )  # fmt: skip
