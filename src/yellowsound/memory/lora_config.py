"""LoRA settings: what a file's metadata (peft's ``LoraConfig``, as diffusers stores it) says of ranks and strengths."""

from __future__ import annotations

import json
import math
import re
import reprlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

METADATA_KEY = "lora_adapter_metadata"
_DEFAULT_ALPHA = 8.0  # peft's, for metadata that leave lora_alpha out
# What these mean is more than adding B @ A: peft changes the weights below, or merges in another way.
_OTHER_MERGES = (
    "use_dora", "use_bdlora", "use_qalora", "alora_invocation_tokens", "arrow_config", "kasa_config",
    "monteclora_config", "layer_replication",
)  # fmt: skip
_CHANGED_WEIGHTS = ("pissa", "olora", "corda", "loftq")

Patterns = tuple[tuple[re.Pattern[str], float], ...]


class LoraError(ValueError):
    """A LoRA that cannot be used: one line naming the file, what was found in it and what was expected."""


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """Rank and alpha of every module. ``alpha`` None: the module's rank, as diffusers takes it without metadata."""

    rank: float | None = None
    alpha: float | None = None
    rank_pattern: Patterns = ()
    alpha_pattern: Patterns = ()
    use_rslora: bool = False

    def rank_of(self, module: str) -> float | None:
        """The rank that the metadata give a module, None where they give none."""
        return _matching(self.rank_pattern, module, self.rank)

    def strength(self, module: str, rank: int, scale: float, alpha: float | None) -> float:
        """What ``B @ A`` is multiplied with: ``scale`` alpha / rank, or / sqrt(rank) for rank-stabilised files.

        alpha: the file's own number for this module, which goes before the metadata's.
        """
        if alpha is None:
            alpha = _matching(self.alpha_pattern, module, self.alpha)
        return scale * (rank if alpha is None else alpha) / (math.sqrt(rank) if self.use_rslora else rank)


def read_config(text: str | None, prefix: str, file: Path) -> LoraConfig:
    """The settings in a file's metadata, whose names may begin with ``prefix``. Raises LoraError."""
    if not text:
        return LoraConfig()
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LoraError(f"{file}: metadata {METADATA_KEY} is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise LoraError(f"{file}: metadata {METADATA_KEY} is {reprlib.repr(fields)}, expected a JSON object")
    fields = {name.removeprefix(prefix): value for name, value in fields.items()}
    _refuse_other_merges(fields, file)
    use_rslora = fields.get("use_rslora", False)
    if not isinstance(use_rslora, bool):
        raise LoraError(f"{file}: use_rslora is {reprlib.repr(use_rslora)}, expected true or false")
    return LoraConfig(
        rank=_number(fields["r"], "r", file) if "r" in fields else None,
        alpha=_number(fields.get("lora_alpha", _DEFAULT_ALPHA), "lora_alpha", file),
        rank_pattern=_patterns(fields, "rank_pattern", file),
        alpha_pattern=_patterns(fields, "alpha_pattern", file),
        use_rslora=use_rslora,
    )


def _refuse_other_merges(fields: Mapping[str, object], file: Path) -> None:
    found = [name for name in _OTHER_MERGES if fields.get(name)]
    if str(fields.get("init_lora_weights")).startswith(_CHANGED_WEIGHTS):
        found.append("init_lora_weights")
    if found:
        said = f"{found[0]} is {reprlib.repr(fields[found[0]])}"
        raise LoraError(f"{file}: {said}, expected a plain LoRA, which adds lora_B @ lora_A to unchanged weights")


def _number(value: object, field: str, file: Path) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(value) <= sys.float_info.max:  # type: ignore[arg-type]
        raise LoraError(f"{file}: {field} is {reprlib.repr(value)}, expected a finite number")
    return float(value)  # type: ignore[arg-type]


def _patterns(fields: Mapping[str, object], field: str, file: Path) -> Patterns:
    """Keys are regular expressions in peft: of a module's whole name, or of its end behind a dot."""
    found = fields.get(field) or {}
    if not isinstance(found, dict):
        raise LoraError(f"{file}: {field} is {reprlib.repr(found)}, expected a JSON object of names and numbers")
    patterns = []
    for key, value in found.items():
        try:
            pattern = re.compile(rf"(.*\.)?({key})$")
        except (re.error, OverflowError, RecursionError) as error:
            raise LoraError(f"{file}: {field} has the key {key!r}, expected a name or pattern: {error}") from error
        patterns.append((pattern, _number(value, f"{field} of {key!r}", file)))
    return tuple(patterns)


def _matching(patterns: Patterns, module: str, default: float | None) -> float | None:
    return next((value for pattern, value in patterns if pattern.match(module)), default)
