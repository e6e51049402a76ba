"""Hugging Face directories as checkpoints: config.json, safetensors, tokenizer.json."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from edgedec.export.checkpoints.class_sizes import with_class_sizes
from edgedec.export.checkpoints.draft_layer import WeightPlaces, find_draft_layer, why_left_out
from edgedec.export.checkpoints.hub import PICKLES, TEMPLATE_FILES
from edgedec.export.checkpoints.json_files import read_fields, read_text
from edgedec.export.checkpoints.mlx_matrices import mlx_places, with_mlx_experts
from edgedec.export.checkpoints.newer_reading import read_otherwise
from edgedec.export.checkpoints.packing_files import with_packing
from edgedec.export.checkpoints.published import (
    SAMPLING_KEYS,
    TEMPLATE_NAMES,
    SpecialTokens,
    clashes_with_typical,
    one_template,
    read_bans,
    read_suppressed,
    unapplied_keys,
    usable,
)
from edgedec.export.checkpoints.safetensors_file import StoredTensor, read_tensors
from edgedec.export.checkpoints.sentence_files import (
    MODULES,
    PublishedEmbedding,
    read_sentence_files,
)
from edgedec.export.checkpoints.sentencepiece_tokenizer import cut_otherwise
from edgedec.export.checkpoints.sentencepiece_vocabulary import read_model_file
from edgedec.export.checkpoints.stored_matrices import (
    Fp4Experts,
    QuantisedMatrix,
    gather,
    unused_biases,
)
from edgedec.export.checkpoints.stored_names import (
    with_bare_names,
    with_found,
    with_shared_embedding,
    with_single_experts,
    with_usual_names,
)
from edgedec.export.checkpoints.tokenizer_model import build_from_model, build_from_spiece
from edgedec.export.checkpoints.tokenizer_settings import (
    TokenizerFiles,
    closing_ids,
    opening_ids,
    template_variables,
    with_settings,
)
from edgedec.export.checkpoints.unwritten import StoredBytes, find_unwritten
from edgedec.models.errors import CheckpointError, ConfigError, EdgedecError, UnsupportedModelError
from edgedec.models.families import find_family, hf_scales, refuse_packing, unread_weights
from edgedec.models.fields import Fields
from edgedec.models.quant import FORMATS, PlainTensor, QuantFormat, joined
from edgedec.models.weights import check_layers, check_weights

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"

_WITH_TEXT_PART = {
    "gemma3n": "gemma3n_text", "gemma4": "gemma4_text", "mistral3": "mistral",
    "qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text",
}  # fmt: skip
"""Models that see images, whose text models are read -> their family where it is not stated."""
_UNREAD_PARTS = {
    "vision_tower", "multi_modal_projector", "visual", "audio_tower", "embed_vision", "embed_audio",
}  # fmt: skip
"""Parts of names of weights that change no logits of texts: for images and sounds."""
_BUFFERS = re.compile(
    r"(.*\.)?(_extra_state|masked_bias|position_ids|rotary_emb\.inv_freq|[qkv]_scale|v_head\..*)",
    re.DOTALL,
)
"""What training and other runtimes leave in files: tables and states, scales of an FP8 KV cache,
and the head that rates texts for reinforcement learning. None changes a logit."""
_PARD2 = "pard2"
_WITHOUT_STATES = (
    "what PARD 2 adds of the target model's hidden states (target_proj in warp_model.bin) is left "
    "out: it drafts from the text alone, the mode without a target; --head adds it"
)
_DRAFT_PART = "mtp."
_STACKED_EXPERTS = {"qwen3_5_moe_text"}
"""Families whose publishers have the gates and up projections of all experts in one tensor."""
_OUTER_KEYS = (
    "bos_token_id", "eos_token_id", "pad_token_id", "quantization_config", "quantization",
    "tie_word_embeddings",
)  # fmt: skip


def read_model_type(folder: Path) -> str:
    """Returns the family a Hugging Face directory states, reading only its config.json."""
    return text_part(read_fields(folder, "config.json")).text("model_type")


def text_part(fields: Fields) -> Fields:
    """Returns what ``config.json`` states of the text model, where images are only a part of it.

    Of models whose text models are not read, all stays as it is.
    """
    kind = fields.get("model_type")
    if (
        not isinstance(kind, str)
        or kind not in _WITH_TEXT_PART
        or fields.get("text_config") is None
    ):
        return fields
    outer = {key: fields.values[key] for key in _OUTER_KEYS if key in fields.values}
    text = fields.table("text_config").values
    values = {"model_type": _WITH_TEXT_PART[kind], **outer, **text}
    return Fields(values, fields.origin, CheckpointError)


_OTHER_PARTS = (
    "text_config", "vision_config", "audio_config", "thinker_config", "llm_config",
    "language_config",
)  # fmt: skip
"""Keys of models of which a model of texts is only a part."""


def refuse_images(fields: Fields) -> None:
    """Refuses models that see images or hear sounds.

    Raises:
        UnsupportedModelError: there is a text_config or the like, so the text model is only a part.
    """
    for key in _OTHER_PARTS:
        if fields.get(key) is not None:
            raise UnsupportedModelError(
                f"{fields.origin}: {key} is there, so the model sees images or the like; only "
                f"text models are supported: export one whose config.json has no {key}"
            )


class HuggingFaceTexts:
    """What a Hugging Face directory states besides its weights; any family will do."""

    def __init__(self, folder: Path, name: str | None = None) -> None:
        """Reads config.json.

        Raises:
            CheckpointError: it is missing or broken.
        """
        self.name = name or folder.resolve().name
        self._folder = folder
        fields = text_part(with_packing(folder, read_fields(folder, "config.json")))
        self._fields = with_class_sizes(fields)

    @property
    def licence(self) -> str | None:
        """The licence in the model card's front matter."""
        card = self._folder / "README.md"
        if not card.is_file():
            return None
        head = card.read_text(encoding="utf-8", errors="replace")[:4096]
        match = re.search(r"^license:\s*([\w.+-]+)\s*$", head, re.MULTILINE)
        return match.group(1) if match else None

    @property
    def special(self) -> SpecialTokens:
        """The tokens that begin and end texts."""
        tokenizer, files = Tokenizer.from_str(self._tokenizer_json), self._tokenizer_files
        variables = template_variables(tokenizer, files)  # which padding names a token of
        tokenizer.no_padding()
        tokenizer.no_truncation()
        generation = read_fields(self._folder, "generation_config.json", is_optional=True)
        vocab_size = self._vocab_size
        id_lists = (
            [i for i in _ids(fields, "eos_token_id") if 0 <= i < vocab_size]
            for fields in (generation, self._fields)
        )
        end = files.roles().get("eos_token")
        named = None if end is None else tokenizer.token_to_id(end)
        # Fine-tuned models often name the end of a turn in one of the files only.
        eos_ids = [*next(filter(None, id_lists), ()), *([] if named is None else [named])]
        return SpecialTokens(
            tuple(dict.fromkeys(i for i in eos_ids if 0 <= i < vocab_size)),
            tuple(i for i in opening_ids(tokenizer, files) if i < vocab_size),
            variables,
            tuple(i for i in closing_ids(tokenizer) if i < vocab_size),
            self._start_id(generation),
        )

    def _start_id(self, generation: Fields) -> int | None:
        """Returns what a decoder begins with, as transformers finds it."""
        id_lists = (
            _ids(fields, key)
            for key in ("decoder_start_token_id", "bos_token_id")
            for fields in (generation, self._fields)
        )
        ids = next(filter(None, id_lists), ())
        return ids[0] if ids and 0 <= ids[0] < self._vocab_size else None

    @property
    def sampling(self) -> dict[str, Any]:
        """The sampling that ``generation_config.json`` recommends."""
        sampling = read_fields(self._folder, "generation_config.json", is_optional=True)
        return {**_recommended(sampling), **read_bans(sampling, self._vocab_size)}

    @property
    def unapplied(self) -> tuple[str, ...]:
        """What is not applied, or read otherwise by others, a line each."""
        sampling = read_fields(self._folder, "generation_config.json", is_optional=True)
        return (*unapplied_keys(sampling), *self._absent_ends(sampling), *self._read_otherwise())

    def _absent_ends(self, generation: Fields) -> Iterator[str]:
        """Yields a line for each file with end tokens that the vocabulary does not have."""
        vocab_size = self._vocab_size
        for fields in (generation, self._fields):
            absent = [token for token in _ids(fields, "eos_token_id") if token >= vocab_size]
            if absent:
                yield (
                    f"{fields.origin}: eos_token_id names {', '.join(map(str, absent))}, which is "
                    f"not applied: the vocabulary has {vocab_size} tokens. Correct the file if "
                    "texts do not end"
                )

    def _read_otherwise(self) -> tuple[str, ...]:
        whole = self._folder / "tokenizer.json"
        if not whole.is_file():
            model = self._folder / "tokenizer.model"
            return cut_otherwise(read_model_file(model)) if model.is_file() else ()
        special = self.special
        parts = read_otherwise(
            _checked_tokenizer(whole),
            self._tokenizer_files,
            self._tokenizer_json,
            special.opening_ids,
            special.variables,
        )
        if not parts:
            return ()
        return (
            f"{whole}: transformers 5 reads this otherwise: {', '.join(parts)}. Transformers 4 "
            "wrote it, and edgedec reads it as that does: compare texts with transformers 4",
        )

    @property
    def embedding(self) -> PublishedEmbedding | None:
        """What the files of sentence-transformers state; None where there are none."""
        return read_sentence_files(self._folder)

    @property
    def _vocab_size(self) -> int:
        """Rows of the embedding, the upper bound of token ids."""
        return self._fields.integer("vocab_size")

    def tokenizer_json(self) -> str:
        """Returns the directory's own tokenizer.json, or what its tokenizer.model comes to."""
        return self._tokenizer_json

    @cached_property
    def _tokenizer_files(self) -> TokenizerFiles:
        names = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
        settings, more, added = (
            read_fields(self._folder, name, is_optional=True) for name in names
        )
        return TokenizerFiles(settings, more, added, self._fields)

    @property
    def _is_t5(self) -> bool:
        return bool(self._fields.get("model_type") == "t5")

    @cached_property
    def _tokenizer_json(self) -> str:
        whole, model = self._folder / "tokenizer.json", self._folder / "tokenizer.model"
        files, vocab_size = self._tokenizer_files, self._vocab_size
        if whole.is_file():
            return with_settings(_checked_tokenizer(whole), files, vocab_size)
        if model.is_file():
            return build_from_model(model, files.settings, vocab_size)
        if (spiece := self._folder / "spiece.model").is_file() and self._is_t5:
            return build_from_spiece(spiece, files.settings, vocab_size)
        raise CheckpointError(
            f"{self._folder}: has neither tokenizer.json nor tokenizer.model; write one with "
            f"transformers: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )

    def chat_template(self) -> str | None:
        """Returns the Jinja template of conversations, from wherever the directory keeps it."""
        single, of_tools = (self._folder / name for name in TEMPLATE_FILES)
        if single.is_file():
            more = read_text(of_tools) if of_tools.is_file() else None
            return one_template(read_text(single), more)
        for name in ("chat_template.json", "tokenizer_config.json"):
            template = read_fields(self._folder, name, is_optional=True).get("chat_template")
            if isinstance(template, list):
                named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
                template = one_template(*(_text_or_none(named.get(n)) for n in TEMPLATE_NAMES))
            if isinstance(template, str) and template:
                return template
        return None


class HuggingFaceCheckpoint(HuggingFaceTexts):
    """A Hugging Face directory of a family we have a recipe for, its safetensors mapped."""

    def __init__(self, folder: Path, name: str | None = None) -> None:
        """Opens and checks the directory.

        Raises:
            CheckpointError: a file is missing or broken.
            UnsupportedModelError: its family or a tensor type has no reader.
        """
        super().__init__(folder, name)
        refuse_images(self._fields)
        family = find_family(self._fields.text("model_type"))
        refuse_packing(self._fields)
        all_tensors = _read_all_tensors(folder)
        stored_tensors = {
            stored: tensor
            for stored, tensor in all_tensors.items()
            if _DRAFT_PART.strip(".") not in stored.split(".")
        }
        self._files = {id(tensor.file): tensor.file for tensor in stored_tensors.values()}
        self._stored = all_tensors
        try:
            if self._fields.text("model_type") in _STACKED_EXPERTS:
                stored_tensors = with_single_experts(stored_tensors)
            stored_tensors = with_mlx_experts(stored_tensors)
            self._tensors = with_usual_names(with_bare_names(gather(stored_tensors, self._fields)))
            if self._fields.get("tie_word_embeddings") is not False:
                self._tensors = with_shared_embedding(self._tensors)
            shapes = {stored: tensor.shape for stored, tensor in self._tensors.items()}
            ignorable = unused_biases(self._tensors)
            makes_vectors = (folder / MODULES).is_file()
            fields = with_found(self._fields, self._tensors, ignorable, makes_vectors)
            generation = read_fields(folder, "generation_config.json", is_optional=True)
            suppressed = read_suppressed(generation, "suppress_tokens")
            self.config = family.read_hf(fields).without(suppressed)
            check_layers(self.config, len(shapes))
            weights, scales = family.weights(self.config), hf_scales(self.config, fields)
            places = mlx_places({ours: w.hf for ours, w in weights.items()}, self._tensors)
            self._map = {
                ours: (weights[ours].shape, dataclasses.replace(hf, scales=scales.get(ours, ())))
                for ours, hf in places.items()
            }
            ignorable |= unread_weights(self.config)
            if self.config.is_head_tied:
                ignorable.add("lm_head.weight")
            check_weights(self.config.family, self._map, shapes, frozenset(ignorable))
            _check_floats(self._map, self._tensors)
            self._add_draft_layer(all_tensors)
            if self._fields.get("spd_type") == _PARD2 or self._fields.get(_PARD2):
                self.left_out = _WITHOUT_STATES
        except ConfigError as error:
            raise CheckpointError(f"{self.name}: {error}") from None
        except EdgedecError as error:
            raise type(error)(f"{self.name}: {error}") from None

    def _add_draft_layer(self, stored: Mapping[str, StoredTensor]) -> None:
        """Adds the weights of the layer for drafting, if there is one that can be read."""
        of_draft_layer = {
            name: tensor for name, tensor in stored.items() if name.startswith(_DRAFT_PART)
        }
        if self._fields.text("model_type") in _STACKED_EXPERTS:
            of_draft_layer = with_single_experts(of_draft_layer)
        self.has_draft_layer, self.left_out = False, ""
        try:
            gathered = gather(of_draft_layer, self._fields)
            shapes = {name: tensor.shape for name, tensor in gathered.items()}
            layer = find_draft_layer(self.config, shapes, is_gguf=False)
            _check_floats(layer, gathered)
        except EdgedecError as error:
            self.left_out = why_left_out(error)
            return
        self._tensors |= gathered
        self._map |= layer
        self.has_draft_layer = bool(layer)

    def format(self, name: str) -> QuantFormat:
        """Returns the storage format of the matrix ``name``."""
        source = self._map[name][1]
        formats = {self._tensors[each].format for each in source.names}
        return FORMATS["f32"] if source.scales or len(formats) > 1 else formats.pop()

    def stand_in(self, name: str) -> QuantFormat | None:
        """Returns the format that stands in for that of the matrix ``name``."""
        source = self._map[name][1]
        tensor = self._tensors[source.names[0]]
        if isinstance(tensor, StoredTensor):
            return None
        is_float = self.format(name).is_float
        return FORMATS["q8_0"] if is_float and not tensor.format.is_float else tensor.stand_in

    def rows(self, name: str, start: int, stop: int) -> PlainTensor:
        """Returns rows [start, stop) of the matrix ``name``."""
        stored, source = self._stored_rows(name, start, stop), self._map[name][1]
        if not source.scales:
            return stored
        scales = source.row_scales(start, stop)[:, np.newaxis]
        return PlainTensor(self.format(name), stored.dequantize() * scales)

    def _stored_rows(self, name: str, start: int, stop: int) -> PlainTensor:
        """Returns rows as they are stored."""
        (n_rows, *_), source = self._map[name]
        tensors = [self._tensors[name] for name in source.names]
        first = tensors[0]
        if isinstance(first, Fp4Experts):
            n_experts, _, n = first.shape
            every = np.arange(n_experts * n).reshape(n_experts, n)
            source = dataclasses.replace(source, is_transposed=False)
            return first.plain(source.take(every, n_rows, start, stop))
        if not isinstance(first, StoredTensor):
            return self._quantised_rows(name, start, stop)
        values = [tensor.values() for tensor in tensors if isinstance(tensor, StoredTensor)]
        stored = values[0] if source.names == (source.name,) else values
        return PlainTensor(first.format, source.take(stored, n_rows, start, stop))

    def _quantised_rows(self, name: str, start: int, stop: int) -> PlainTensor:
        """Returns rows of a matrix, or of the matrices of experts one below the other."""
        (n_rows, *_), source = self._map[name]
        stored = (self._tensors[each] for each in source.names)
        tensors = [tensor for tensor in stored if not isinstance(tensor, StoredTensor)]
        counts = [tensor.shape[0] for tensor in tensors]
        first = np.cumsum([0, *counts])
        every = [np.arange(n) + start_of for n, start_of in zip(counts, first, strict=False)]
        rows = source.take(every if source.n_experts else every[0], n_rows, start, stop)
        owners = np.searchsorted(first, rows, "right") - 1
        parts = [
            tensor.plain(rows[owners == i] - first[i])
            for i, tensor in enumerate(tensors)
            if (owners == i).any()
        ]
        return joined(parts or [tensors[0].plain(rows)], self.format(name))

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        """Returns the norm weight or bias ``name``."""
        (n_rows, *_), source = self._map[name]
        tensor = self._tensors[source.name]
        assert isinstance(tensor, StoredTensor)  # the others have two dimensions
        values = source.take(tensor.values(), n_rows)
        return source.values(np.array(PlainTensor(tensor.format, values).dequantize(), np.float32))

    def unwritten(self) -> tuple[str, ...]:
        """Returns a line for each tensor that a download seems to have left in part."""
        return find_unwritten(
            StoredBytes(t.file, name, t.offset, t.n_bytes, t.n_bytes // math.prod(t.shape[:-1]))
            for name, t in self._stored.items()
            if t.n_bytes
        )

    def release(self) -> None:
        """Drops mapped pages of what was read."""
        for file in self._files.values():
            file.release()


def _recommended(sampling: Fields) -> dict[str, Any]:
    """Returns how ``generation_config.json`` recommends to sample."""
    if sampling.get("do_sample") is None and not any(map(sampling.get, SAMPLING_KEYS)):
        return {}
    kept = {key: sampling.optional(key, sampling.number) for key in SAMPLING_KEYS}
    numbers = {key: value for key, value in kept.items() if value is not None}
    if "top_k" in numbers:
        numbers["top_k"] = sampling.integer("top_k")
    if clashes_with_typical(numbers):
        del numbers["typical_p"]
    return {"do_sample": sampling.flag("do_sample", False), **usable(numbers)}


def _is_read(name: str) -> bool:
    return not _BUFFERS.fullmatch(name) and _UNREAD_PARTS.isdisjoint(name.split("."))


def _read_all_tensors(folder: Path) -> dict[str, StoredTensor]:
    if (folder / SINGLE).is_file():  # as in transformers, an index beside it does not count
        files = [SINGLE]
    elif (folder / INDEX).is_file():
        names = read_fields(folder, INDEX).table("weight_map", {}).values
        files = sorted({file for file in names.values() if isinstance(file, str)})
        if bad := next((file for file in files if Path(file).name != file), None):
            raise CheckpointError(f"{INDEX}: file name {bad[:60]!r} leaves the directory")
        if not files:
            raise CheckpointError(f"{folder}: {INDEX} names no files of weights; fetch it again")
    else:
        raise CheckpointError(_no_weights(folder))
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        if not (folder / file).is_file():
            raise CheckpointError(f"{folder}: {INDEX} names {file}, which is missing; fetch it")
        tensors.update(read_tensors(folder / file, _is_read))
    return tensors


_OTHER_LIBRARIES = {"tf_model.h5": "from_tf", "flax_model.msgpack": "from_flax"}
"""Files of weights of TensorFlow and Flax -> the option that reads them."""


def _no_weights(folder: Path) -> str:
    if ggufs := sorted(path.name for path in folder.glob("*.gguf")):
        return f"{folder}: its weights are in a GGUF file; export {folder / ggufs[0]} instead"
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
    if pickles:
        return (
            f"{folder}: its weights are in {pickles[0]}, which may run code when read; convert it "
            f"with transformers: AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW)"
        )
    for name, option in _OTHER_LIBRARIES.items():
        if (folder / name).is_file():
            return (
                f"{folder}: its weights are in {name} alone; convert them with transformers 4: "
                f"AutoModelForCausalLM.from_pretrained(FOLDER, {option}=True).save_pretrained(NEW)"
            )
    if others := sorted(p.name for p in folder.glob("*.safetensors") if p.is_file()):
        return (
            f"{folder}: has neither {SINGLE} nor {INDEX}, but {others[0]}; if its weights have the "
            f"names of transformers, call it {SINGLE}"
        )
    return f"{folder}: has neither {SINGLE} nor {INDEX}; fetch it again"


def _checked_tokenizer(path: Path) -> str:
    text = read_text(path)
    try:
        Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception
        reason = (str(error).splitlines() or [""])[0][:160]
        raise CheckpointError(f"{path}: is not a tokenizer: {reason}") from None
    return text


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _ids(fields: Fields, key: str) -> tuple[int, ...]:
    value = fields.get(key)
    if isinstance(value, list):
        return fields.integers(key)
    return () if value is None else (fields.integer(key),)


def _check_floats(
    places: WeightPlaces, tensors: Mapping[str, StoredTensor | QuantisedMatrix]
) -> None:
    """Raises an UnsupportedModelError where a weight is made of floats, but is quantised."""
    for name, (_, source) in places.items():
        if source.n_folded > 1 and not isinstance(tensors[source.name], StoredTensor):
            raise UnsupportedModelError(
                f"{name} is quantised, expected floats: start from the float checkpoint"
            )
