"""A manifest is believed only as far as it was checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgedec.models.bundle_files import damaged_files
from edgedec.models.errors import BundleError
from edgedec.models.manifest import BundleManifest, read_manifest

from .conftest import CONTRACT, GRAPH, WEIGHTS, make_manifest

pytestmark = pytest.mark.robustness

MODEL = ("models", "target")


def rewrite(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Applies ``change`` to the fields of the manifest in place."""
    fields = json.loads((bundle / "manifest.json").read_text())
    change(fields)
    (bundle / "manifest.json").write_text(json.dumps(fields))


def refusal(bundle: Path) -> str:
    """Returns the one-line message with which the bundle is refused."""
    with pytest.raises(BundleError) as caught:
        read_manifest(bundle)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 1000
    return message


def test_a_path_that_is_no_text_is_no_bundle(tmp_path: Path) -> None:
    make_manifest(tmp_path / "\udcff.edgedec")
    assert "\udcff.edgedec is not UTF-8" in refusal(tmp_path / "\udcff.edgedec")


def test_round_trip(tmp_path: Path) -> None:
    manifest = make_manifest(tmp_path / "b")
    assert read_manifest(tmp_path / "b") == manifest
    assert BundleManifest.from_dict(manifest.to_dict()) == manifest
    assert damaged_files(tmp_path / "b", manifest.files) == []


@pytest.mark.parametrize(
    "path",
    [
        "../secret", "target/../../secret", "/etc/passwd", "target//x", "./x", "target/.", "",
        "a\\b", "c:x", "a\nb", "a\0b", "manifest.json",
    ],
)  # fmt: skip
def test_paths_stay_inside(bundle: Path, path: str) -> None:
    rewrite(bundle, lambda f: f["files"].update({path: {"n_bytes": 1, "sha256": "0" * 64}}))
    assert "relative path" in refusal(bundle)


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", "Target", "a" * 33, "-x", "t\n", "\0"])
def test_names_of_models_are_plain(bundle: Path, name: str) -> None:
    rewrite(bundle, lambda f: f["models"].update({name: f["models"].pop("target")}))
    assert "expected lower-case letters and digits" in refusal(bundle)


@pytest.mark.parametrize("name", [GRAPH, WEIGHTS, "tokenizer.json", "manifest.json"])
def test_link_out_of_the_bundle(bundle: Path, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    (bundle / name).rename(outside)
    (bundle / name).symlink_to(outside)
    assert "link" in refusal(bundle)


def test_linked_directory_out_of_the_bundle(bundle: Path, tmp_path: Path) -> None:
    (bundle / "target").rename(tmp_path / "elsewhere")
    (bundle / "target").symlink_to(tmp_path / "elsewhere")
    assert "link" in refusal(bundle)


def test_links_in_a_circle(bundle: Path) -> None:
    (bundle / GRAPH).unlink()
    (bundle / GRAPH).symlink_to(bundle / GRAPH)
    refusal(bundle)


def test_link_inside_the_bundle_is_fine(bundle: Path) -> None:
    (bundle / WEIGHTS).rename(bundle / "weights")
    (bundle / WEIGHTS).symlink_to(bundle / "weights")
    read_manifest(bundle)


def test_unknown_schema_version(bundle: Path) -> None:
    rewrite(bundle, lambda f: f.update(schema_version=7, novelty={}))
    message = refusal(bundle)
    assert "7" in message
    assert "this edgedec reads 3" in message
    assert "install" in message


def test_bundles_of_schema_1_are_to_be_exported_again(bundle: Path) -> None:
    rewrite(bundle, lambda f: f.update(schema_version=1))
    assert refusal(bundle).endswith("is 1, this edgedec reads 3: export the model again")


@pytest.mark.parametrize("n_bytes", [-1, -(2**70), 2**70, 1.5, "5", True, None, [5]])
def test_sizes_are_counts(bundle: Path, n_bytes: object) -> None:
    rewrite(bundle, lambda f: f["files"][GRAPH].update(n_bytes=n_bytes))
    assert "n_bytes" in refusal(bundle)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("schema_version",), "1"),
        (("name",), 3),
        (("name",), None),
        (("licence",), 3),
        (("models",), []),
        (("models",), {}),
        ((*MODEL, "kind"), "head"),
        ((*MODEL, "kind"), "draft"),
        ((*MODEL, "kind"), ["target"]),
        ((*MODEL, "graph"), "nowhere.onnx"),
        ((*MODEL, "weights"), WEIGHTS),
        ((*MODEL, "weights"), ["other.bin"]),
        ((*MODEL, "contract"), None),
        ((*MODEL, "contract", "compiler"), "../fused"),
        ((*MODEL, "contract", "backend"), "os.path"),
        ((*MODEL, "contract", "backend"), 3),
        ((*MODEL, "contract", "triple"), None),
        ((*MODEL, "contract", "providers"), "CPUExecutionProvider"),
        ((*MODEL, "contract", "inputs"), ["input_ids", "parents", "k_cache", "v_cache"]),
        ((*MODEL, "contract", "inputs"), [*CONTRACT.inputs, "parents"]),
        ((*MODEL, "contract", "inputs"), [n for n in CONTRACT.inputs if n != "parents"]),
        ((*MODEL, "contract", "inputs"), [n for n in CONTRACT.inputs if n != "v_cache"]),
        ((*MODEL, "contract", "inputs"), 7),
        ((*MODEL, "contract", "outputs"), []),
        ((*MODEL, "contract", "outputs"), ["logits"]),
        ((*MODEL, "contract", "outputs"), [n for n in CONTRACT.outputs if "top" not in n]),
        ((*MODEL, "contract", "kv", "kind"), "rows"),
        ((*MODEL, "contract", "kv", "kind"), "pages"),
        ((*MODEL, "contract", "kv", "format"), "int3"),
        ((*MODEL, "contract", "kv", "format"), "float32"),
        ((*MODEL, "contract", "kv", "format"), "int8\n"),
        ((*MODEL, "contract", "kv", "format"), ["int8"]),
        ((*MODEL, "contract", "kv", "row_nbytes"), 0),
        ((*MODEL, "contract", "kv", "block_nbytes"), 0),
        ((*MODEL, "contract", "kv", "block_nbytes"), 2**40),
        ((*MODEL, "contract", "kv", "ring_rows"), 64),
        ((*MODEL, "contract", "kv", "ring_rows"), -1),
        ((*MODEL, "contract", "kv", "ring_layers"), [2**20]),
        ((*MODEL, "contract", "kv", "ring_layers"), ["0"]),
        ((*MODEL, "contract", "can"), ["trees"]),
        ((*MODEL, "contract", "can", "trees"), 1),
        ((*MODEL, "contract", "can", "blocks"), True),
        ((*MODEL, "config", "stack"), "masked"),
        ((*MODEL, "config", "stack"), "sees all"),
        ((*MODEL, "contract", "can", "n_sequences"), "no"),
        ((*MODEL, "contract", "can", "n_sequences"), 0),
        ((*MODEL, "contract", "can", "flight"), True),
        ((*MODEL, "contract", "can", "row_gap"), -0.5),
        ((*MODEL, "contract", "can", "row_gap"), "none"),
        ((*MODEL, "contract", "can", "hidden"), [3]),
        ((*MODEL, "contract", "can", "hidden"), [2]),
        ((*MODEL, "config"), None),
        ((*MODEL, "config", "n_layers"), 0),
        ((*MODEL, "config", "n_kv_heads"), 3),
        ((*MODEL, "config", "n_kv_heads"), True),
        ((*MODEL, "config", "rms_norm_eps"), "small"),
        ((*MODEL, "config", "rope_theta"), -1.0),
        ((*MODEL, "config", "has_qkv_bias"), 1),
        ((*MODEL, "config", "has_qk_norm"), "yes"),
        ((*MODEL, "config", "rope_scaling"), "linear"),
        ((*MODEL, "config", "rope_scaling", "kind"), "yarn"),
        ((*MODEL, "config", "rope_scaling", "factors"), [1, "2"]),
        ((*MODEL, "config", "layers"), 2),
        ((*MODEL, "config", "layers"), None),
        ((*MODEL, "config", "layers"), [{"intermediate_size": 16, "rope_theta": 1e4}]),
        ((*MODEL, "config", "layers"), [{"intermediate_size": 16}] * 2),
        ((*MODEL, "config", "layers"), [{"intermediate_size": 0, "rope_theta": 1e4}] * 2),
        ((*MODEL, "config", "layers"), [{"intermediate_size": 16, "rope_theta": -1}] * 2),
        ((*MODEL, "config", "layers"), [{"intermediate_size": 16, "rope_theta": 1, "x": 1}] * 2),
        (
            (*MODEL, "config", "layers"),
            [{"intermediate_size": 16, "rope_theta": 1, "mixer": 1}] * 2,
        ),
        ((*MODEL, "config", "layers"), [{"intermediate_size": 16, "rope_theta": 1, "has_mlp": 1}]),
        ((*MODEL, "context"), 0),
        ((*MODEL, "tensor_formats"), {"x": "q9_9"}),
        (("files", GRAPH), []),
        (("files", GRAPH, "sha256"), "F" * 64),
        (("files", GRAPH, "sha256"), "0" * 63),
        (("stop_token_ids",), [-1]),
        (("stop_token_ids",), [10]),
        (("stop_token_ids",), 2),
        (("opening_token_ids",), [10]),
        (("template_variables",), {"bos_token": 1}),
        (("template_variables",), {"more": ["a", 1]}),
        (("defaults",), []),
        (("verification",), None),
    ],
)
def test_wrong_values_are_named(bundle: Path, place: tuple[str, ...], value: object) -> None:
    def change(fields: dict[str, Any]) -> None:
        for key in place[:-1]:
            fields = fields[key]
        fields[place[-1]] = value

    rewrite(bundle, change)
    message = refusal(bundle)
    assert place[-1] in message or place[1] in message


@pytest.mark.parametrize(
    "place",
    [
        (), MODEL, (*MODEL, "contract"), (*MODEL, "contract", "kv"), (*MODEL, "contract", "can"),
        ("files", GRAPH),
    ],
)  # fmt: skip
def test_every_key_is_needed_and_no_other(bundle: Path, place: tuple[str, ...]) -> None:
    text = (bundle / "manifest.json").read_text()

    def changed(change: Callable[[dict[str, Any]], object]) -> str:
        fields = whole = json.loads(text)
        for key in place:
            fields = fields[key]
        change(fields)
        (bundle / "manifest.json").write_text(json.dumps(whole))
        return refusal(bundle)

    keys = json.loads(text)
    for key in place:
        keys = keys[key]
    for key in keys:
        assert key in changed(lambda fields, key=key: fields.update({key + "_": 1}))
        # Nothing was trained, no layer keeps a state or the latest tokens only, nobody reads
        # features, rows do not depend on each other, no heads are in a graph, rows see none behind
        # them, and there is no encoder, unless it is said.
        if key not in (
            "auxiliary", "ring_layers", "ring_rows", "recurrent_layers", "recurrent_rows",
            "features", "row_gap", "mtp", "final_norm", "blocks", "encoder", "sources",
        ):  # fmt: skip
            assert key in changed(lambda fields, key=key: fields.pop(key))


def test_a_config_names_what_differs_from_the_defaults(bundle: Path) -> None:
    config = json.loads((bundle / "manifest.json").read_text())["models"]["target"]["config"]
    assert config["rope_scaling"] == {"kind": "linear", "factor": 2.0}
    assert config["layers"][1] == {"intermediate_size": 12, "rope_theta": 0.0}
    assert not {"has_qkv_bias", "has_qk_norm", "trimmed_head_size"} & set(config)


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", "3", "\ufeff{}", '{"schema_version": NaN}', "[" * 100_000,
        '{"schema_version": ' + "9" * 5000 + "}",
    ],
)  # fmt: skip
def test_no_json_object(bundle: Path, text: str) -> None:
    (bundle / "manifest.json").write_text(text, encoding="utf-8")
    refusal(bundle)


def test_not_utf8(bundle: Path) -> None:
    (bundle / "manifest.json").write_bytes(b'{"name": "\xff"}')
    assert "not JSON" in refusal(bundle)


def test_no_bundle(tmp_path: Path) -> None:
    assert "expected a bundle" in refusal(tmp_path / "nothing")
    assert "manifest.json" in refusal(tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert "edgedec export" in refusal(tmp_path / "model.gguf")


def test_missing_truncated_or_irregular_file(bundle: Path) -> None:
    weights = bundle / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-1])
    message = refusal(bundle)
    assert WEIGHTS in message
    assert "4095" in message
    assert "4096" in message
    weights.unlink()
    assert "missing" in refusal(bundle)
    weights.mkdir()
    assert "regular file" in refusal(bundle)


def test_flipped_byte_is_named(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytearray((bundle / WEIGHTS).read_bytes())
    data[1234] ^= 1
    (bundle / WEIGHTS).write_bytes(data)
    assert WEIGHTS in refusal(bundle)
    monkeypatch.setattr("edgedec.models.manifest.SMALL_FILE_BYTES", 100)
    manifest = read_manifest(bundle)  # large files are not read at load ...
    assert damaged_files(bundle, manifest.files) == [WEIGHTS]  # ... but this finds the damage


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.slow
@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_mangled_manifests_raise_nothing_but_bundle_errors(
    bundle: Path, data: st.DataObject
) -> None:
    fields = json.loads((bundle / "manifest.json").read_text())
    node: Any = fields
    while True:
        key = data.draw(st.sampled_from(sorted(node)) if node else st.just("x"))
        deeper = isinstance(node.get(key), dict) and data.draw(st.booleans())
        if not deeper:
            break
        node = node[key]
    if data.draw(st.booleans()):
        node[key] = data.draw(json_values)
    else:
        node[data.draw(st.text(max_size=12))] = node.pop(key, None)
    with suppress(BundleError):
        BundleManifest.from_dict(fields)


@settings(
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_mangled_bytes_raise_nothing_but_bundle_errors(bundle: Path, data: st.DataObject) -> None:
    raw = bytearray((bundle / "manifest.json").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    mangled = bundle.parent / "mangled.edgedec"
    mangled.mkdir(exist_ok=True)
    (mangled / "manifest.json").write_bytes(raw)
    with pytest.raises(BundleError):  # its files are missing, whatever else survived
        read_manifest(mangled)
