"""Events: plain facts that any listener can store; and the switch that stops a clip."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from yellowsound.events import Cancelled, CancelToken, Preview, Replanned, StageBegan, StageEnded, StepDone, Warned


@pytest.mark.parametrize(
    "event",
    [
        StageBegan(stage="text"),
        StageEnded(stage="decode", seconds=1.5),
        StepDone(step=1, steps=4, seconds=0.2),
        Warned(message="mind"),
        Replanned(reason="short of memory"),
        Preview(step=2, frames=1, strip=np.arange(12, dtype=np.uint8).reshape(2, 2, 3)),
    ],
)
def test_every_event_is_json_with_its_type_and_time(event: object) -> None:
    kept = json.loads(json.dumps(event.to_json()))  # type: ignore[attr-defined]
    assert kept["type"] == type(event).__name__ and kept["time"] > 1.7e9


def test_a_preview_keeps_its_pixels() -> None:
    strip = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    kept = Preview(step=3, frames=2, strip=strip).to_json()["strip"]
    assert np.array_equal(np.frombuffer(base64.b64decode(kept["base64"]), np.uint8).reshape(kept["shape"]), strip)


def test_the_token_raises_only_when_thrown() -> None:
    token = CancelToken()
    token.check()
    token.cancel()
    token.cancel()
    assert token.is_cancelled
    with pytest.raises(Cancelled):
        token.check()
