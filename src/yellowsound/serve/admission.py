"""Refuses at submission what no memory plan fits, before anybody waits for it."""

from __future__ import annotations

from yellowsound.request import ClipRequest
from yellowsound.serve.served import ServedModel
from yellowsound.serve.settings import Settings


def refuse_unplannable(model: ServedModel, request: ClipRequest, settings: Settings) -> None:
    """Raise RequestError when the worker's machine cannot hold this clip."""
