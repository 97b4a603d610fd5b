"""The files of a checkpoint: model index, part configs, single and sharded weights. No torch.

Knows the Diffusers folder layout and the layouts people mistake for it; each mistake is refused in one line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yellowsound.checkpoint_identity import FileIdentity
from yellowsound.safetensors_header import (
    CheckpointError,
    TensorEntry,
    check_not_pointer,
    read_header,
    read_json,
    refuse,
)

_WHOLE = "download the whole repository"
_CONVERT = "use the published -Diffusers repository or convert it to the Diffusers layout"
_NATIVE = re.compile(r"(^|\.)visual_blocks\.\d+\.|audio_outLayer|\.(video|audio)T\b|\.(video|audio)T\.")
_OTHER_NAMES = {"CLIPTextModel": {"CLIPTextModelWithProjection", "CLIPModel"}}  # of files with more than is used
_SHARD = re.compile(r"-\d{5}-of-\d{5}\.safetensors$")
_COMMIT = re.compile(r"[0-9a-f]{40}")
WEIGHT_DTYPES = ("F32", "BF16", "F16")
BUFFER_DTYPES = ("I64", "I32", "BOOL", "F64")


@dataclass(frozen=True, slots=True)
class Weights:
    """A part's stored tensors by name, and the files they lie in as they were when their headers were read."""

    tensors: dict[str, TensorEntry]
    files: tuple[FileIdentity, ...]


def model_index(root: Path, pipeline: str) -> dict[str, Any]:
    """model_index.json of ``root``, of class ``pipeline``; anything else that lies there is refused by what it is."""
    if root.is_file():
        _refuse_single_file(root)
    if not root.is_dir():
        refuse(root, "no such folder", "a checkpoint folder", "check the path, or `yellowsound weights list`")
    file = root / "model_index.json"
    if not file.exists():
        _refuse_other_layout(root)
    index = read_json(file)
    found = index.get("_class_name")
    if found != pipeline:
        what = "an upscaler (VSR) checkpoint" if found == "Kandinsky6SRPipeline" else f"pipeline {found}"
        refuse(file, what, pipeline, "use a Kandinsky 6 generation checkpoint")
    return index


def is_named(value: object) -> bool:
    """Whether a model_index entry names a class: ``[library, class]`` and neither of them null."""
    return isinstance(value, list) and len(value) == 2 and all(isinstance(part, str) for part in value)


def config(file: Path, class_name: str) -> dict[str, Any]:
    """A part's config, its own class compared with the one that model_index.json names. Raises CheckpointError."""
    values = read_json(file)
    names = [values["_class_name"]] if "_class_name" in values else values.get("architectures")
    if names and {class_name, *_OTHER_NAMES.get(class_name, ())}.isdisjoint(names):
        refuse(file, f"class {', '.join(map(str, names))}", f"{class_name} as in model_index.json", _WHOLE)
    return values


def weight_stem(component: str) -> str:
    """File name of a part's weights without suffix: transformers and diffusers differ."""
    return "model" if component.startswith("text_encoder") else "diffusion_pytorch_model"


def weights(folder: Path, stem: str) -> Weights:
    """Every tensor of a part, from its single file or from all shards of its index. Raises CheckpointError."""
    single, index = folder / f"{stem}.safetensors", folder / f"{stem}.safetensors.index.json"
    if index.exists() and (single.exists() or single.is_symlink()):
        refuse(single, "both a single file and an index of shards", "one of them", "delete the one that is stale")
    found = _sharded(index, stem) if index.exists() else _single(single, stem)
    for entry in found.tensors.values():
        _check_entry(entry)
    return found


def total_note(folder: Path, stem: str, entries: dict[str, TensorEntry]) -> str | None:
    """What an index says wrongly about the sum of its shards, if it does; nothing is loaded by that number."""
    index = folder / f"{stem}.safetensors.index.json"
    metadata = read_json(index).get("metadata") if index.exists() else None
    said = metadata.get("total_size") if isinstance(metadata, dict) else None
    total = sum(entry.size_bytes for entry in entries.values())
    return None if said in (None, total) else f"{index}: total_size is {said}, the shards hold {total}"


def check_tokenizer(folder: Path) -> None:
    """Refuse a tokenizer folder without a vocabulary."""
    if (folder / "tokenizer.json").exists() or (folder / "vocab.json").exists():
        for name in ("tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json"):
            if (folder / name).exists():
                check_not_pointer(folder / name)
        if not (folder / "tokenizer.json").exists() and not (folder / "merges.txt").exists():
            refuse(folder / "merges.txt", "nothing", "the merges that belong to vocab.json", _WHOLE)
        return
    refuse(folder, "no vocabulary", "tokenizer.json, or vocab.json with merges.txt", _WHOLE)


def folder_name(root: Path) -> str:
    """A name to show: of the repository when ``root`` is a snapshot in a hub cache, else of the folder."""
    resolved = root.absolute()
    if resolved.parent.name == "snapshots" and resolved.parent.parent.name.startswith("models--"):
        return resolved.parent.parent.name.split("--")[-1]
    return resolved.name


def revision(root: Path, own: dict[str, Any]) -> str | None:
    """The hub commit that ``root`` came from: recorded in yellowsound.json, or the name of the snapshot folder."""
    recorded = own.get("revision")
    if isinstance(recorded, str):
        return recorded
    name = root.absolute().name
    return name if root.absolute().parent.name == "snapshots" and _COMMIT.fullmatch(name) else None


def is_native(names: list[str]) -> bool:
    """Whether tensor names are those of the original code instead of the Diffusers classes."""
    return any(_NATIVE.search(name) for name in names)


def _single(file: Path, stem: str) -> Weights:
    if not file.exists() and not file.is_symlink():
        shards = sorted(p.name for p in file.parent.glob(f"{stem}*.safetensors") if _SHARD.search(p.name))
        if shards:
            index = file.with_name(f"{file.name}.index.json")
            refuse(index, f"nothing, but {len(shards)} shards", "the index that belongs to them", _WHOLE)
        if any(file.parent.glob("*.bin")):
            refuse(file, "only .bin weights", "safetensors", "use the safetensors files: others are never read")
    identity, tensors = _verified(file)
    return Weights(tensors, (identity,))


def _sharded(index: Path, stem: str) -> Weights:
    document = read_json(index)
    weight_map = document.get("weight_map")
    if not isinstance(weight_map, dict) or not all(_is_file_name(v) for v in weight_map.values()) or not weight_map:
        refuse(index, "no usable weight_map", "tensor names with file names", _WHOLE)
    shards = {name: _verified(index.parent / name) for name in sorted(set(weight_map.values()))}
    headers = {name: header for name, (_, header) in shards.items()}
    _check_all_shards_named(index, stem, set(headers))
    entries: dict[str, TensorEntry] = {}
    for shard, header in headers.items():
        for name, entry in header.items():
            if weight_map.get(name) != shard:
                where = weight_map.get(name, "missing from the index")
                refuse(index.parent / shard, f"tensor {name}", f"it in {where} as {index.name} says", _WHOLE)
            entries[name] = entry
    for name, shard in weight_map.items():
        if name not in headers[shard]:
            refuse(index.parent / shard, f"no tensor {name}", f"it there as {index.name} says", _WHOLE)
    return Weights({name: entries[name] for name in weight_map}, tuple(identity for identity, _ in shards.values()))


def _verified(file: Path) -> tuple[FileIdentity, dict[str, TensorEntry]]:
    """Identity first: what takes the file's place while its header is read is another file to every loading."""
    check_not_pointer(file)
    return FileIdentity.of(file), read_header(file)


def _check_all_shards_named(index: Path, stem: str, named: set[str]) -> None:
    for path in sorted(index.parent.glob(f"{stem}-*.safetensors")):
        if _SHARD.search(path.name) and path.name not in named:
            refuse(path, "a shard the index does not name", f"every shard in {index.name}", _WHOLE)


def _check_entry(entry: TensorEntry) -> None:
    if entry.dtype not in WEIGHT_DTYPES + BUFFER_DTYPES:
        found = f"{entry.name} in {entry.dtype} (a quantised file)"
        refuse(entry.file, found, " or ".join(WEIGHT_DTYPES), "use the published -Diffusers repository")
    if is_native([entry.name]):
        refuse(entry.file, f"native tensor name {entry.name}", "Diffusers names", _CONVERT)


def _is_file_name(value: object) -> bool:
    return isinstance(value, str) and value == Path(value).name and value.endswith(".safetensors")


def _refuse_single_file(file: Path) -> None:
    if file.suffix != ".safetensors":
        refuse(file, "a file", "a checkpoint folder", "give the folder that holds model_index.json")
    refuse(file, f"a single file ({_flavour(file)})", "a folder with model_index.json", _CONVERT)


def _refuse_other_layout(root: Path) -> None:
    weights = sorted(root.glob("*.safetensors"))
    if (root / "snapshots").is_dir():
        refuse(root, "a hub cache folder", "one snapshot of it", f"give a folder under {root / 'snapshots'}")
    if (root / "transformer").is_dir():
        refuse(root / "model_index.json", "nothing", "the model index", _WHOLE)
    if weights:
        found = f"a single-file checkpoint {weights[0].name} ({_flavour(weights[0])})"
        refuse(root, found, "the Diffusers layout with model_index.json", _CONVERT)
    inner = sorted(p.parent.name for p in root.glob("*/model_index.json"))
    if inner:
        refuse(root, f"a folder of checkpoints ({', '.join(inner[:4])})", "one of them", "give the inner folder")
    refuse(root / "model_index.json", "nothing", "a checkpoint in the Diffusers layout", "check the path")


def _flavour(file: Path) -> str:
    try:
        names = list(read_header(file))
    except CheckpointError:
        return "unreadable"
    if is_native(names):
        return "native names"
    if any(name.startswith("model.diffusion_model.") for name in names):
        return "ComfyUI names"
    return "Diffusers names" if any("transformer_blocks." in name for name in names) else "unknown names"
