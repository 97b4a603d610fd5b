"""FakeEngine: the surface of the engine without a model, for tests and load measurements.

Seeded colour clips, a settable pause for each step, and faults asked for in the prompt: ``[oom]``, ``[crash]``,
``[hang]``, ``[nan]``, ``[full]``, ``[die]``, and ``[step=0.5]`` for another pause. A server takes it only with the
test setting ``allow_fake_engines``.
"""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs

import numpy as np
import numpy.typing as npt

from yellowsound.events import CancelToken, OnEvent, Preview, StageBegan, StageEnded, StepDone
from yellowsound.request import ClipRequest
from yellowsound.stages.mux import Mp4Writer

SAMPLE_RATE = 44_100


class FakeEngine:
    """``fake:NAME?step=0.01&load=0.0``: pauses in seconds for each step and for loading."""

    encodes_beside_a_job = True

    def __init__(self, source: str) -> None:
        options = parse_qs(source.partition("?")[2])
        self._step_seconds = float(options.get("step", ["0.01"])[0])
        time.sleep(float(options.get("load", ["0"])[0]))
        if "broken" in options:
            raise ValueError("the fake checkpoint is broken")
        self.encoded: list[str] = []
        self._lock = threading.Lock()

    def generate(
        self,
        request: ClipRequest,
        *,
        on_event: OnEvent,
        cancel: CancelToken,
        out: Path,
    ) -> Any:
        """Write a seeded clip to ``out`` and tell the events a real engine tells."""
        with self._lock:
            known = request.prompt in self.encoded
            self.encoded = [p for p in self.encoded if p != request.prompt]
        pause = self._pause(request.prompt)
        on_event(StageBegan(stage="text"))
        _sleep(0.0 if known else pause, cancel)
        on_event(StageEnded(stage="text", seconds=0.0 if known else pause))
        self._denoise(request, on_event, cancel, pause)
        on_event(StageBegan(stage="decode"))
        self._write(request, cancel, out, pause)
        on_event(StageEnded(stage="decode", seconds=0.0))
        on_event(StageBegan(stage="mux"))
        on_event(StageEnded(stage="mux", seconds=0.0))
        return SimpleNamespace(metadata={"seed": request.seed})

    def encode_ahead(self, prompts: Sequence[str]) -> None:
        with self._lock:
            self.encoded = list(prompts)

    def close(self) -> None:
        pass

    def _pause(self, prompt: str) -> float:
        match = re.search(r"\[step=([0-9.]+)\]", prompt)
        return float(match[1]) if match else self._step_seconds

    def _denoise(self, request: ClipRequest, on_event: OnEvent, cancel: CancelToken, pause: float) -> None:
        steps = request.num_inference_steps or 1
        on_event(StageBegan(stage="denoise"))
        began = time.monotonic()
        for step in range(1, steps + 1):
            _sleep(pause, cancel)
            _fault(request.prompt)
            on_event(StepDone(step=step, steps=steps, seconds=pause))
            if step >= 2:
                on_event(Preview(step=step, frames=3, strip=_strip(request.seed or 0, step)))
        on_event(StageEnded(stage="denoise", seconds=time.monotonic() - began))

    def _write(self, request: ClipRequest, cancel: CancelToken, out: Path, pause: float) -> None:
        assert request.width and request.height and request.num_frames and request.frame_rate
        sound = request.sample_audio
        with Mp4Writer(
            out,
            width=request.width,
            height=request.height,
            num_frames=request.num_frames,
            frame_rate=request.frame_rate,
            sample_rate=SAMPLE_RATE if sound else None,
            metadata={"prompt": request.prompt, "seed": request.seed},
        ) as writer:
            if sound:
                writer.write_audio(_tone(request.num_frames / request.frame_rate))
            for frame in _frames(request):
                writer.write_frames(frame[None])
                cancel.check()
                if "[full]" in request.prompt:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if "[slow decode]" in request.prompt:
                _sleep(pause, cancel)


def _sleep(seconds: float, cancel: CancelToken) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        cancel.check()
        time.sleep(min(left, 0.01))
    cancel.check()


def _fault(prompt: str) -> None:
    if "[oom]" in prompt:
        raise MemoryError("made to run out of memory")
    if "[nan]" in prompt:
        raise RuntimeError("denoise: latents are not finite (/made/up/path/step.bin)")
    if "[crash]" in prompt:
        os.abort()
    if "[die]" in prompt:
        os._exit(3)
    if "[hang]" in prompt:
        time.sleep(3600)


def _frames(request: ClipRequest) -> npt.NDArray[np.uint8]:
    """One seeded colour that drifts: uint8 (frames, height, width, 3)."""
    assert request.width and request.height and request.num_frames
    random = np.random.default_rng(request.seed)
    start, drift = random.integers(40, 200, 3), random.integers(-3, 4, 3)
    colours = np.clip(start + np.arange(request.num_frames)[:, None] * drift, 0, 255).astype(np.uint8)
    return np.broadcast_to(colours[:, None, None], (request.num_frames, request.height, request.width, 3))


def _strip(seed: int, step: int) -> npt.NDArray[np.uint8]:
    random = np.random.default_rng((seed, step))
    return np.repeat(np.repeat(random.integers(0, 255, (4, 24, 3), dtype=np.uint8), 8, 0), 8, 1)


def _tone(seconds: float) -> npt.NDArray[np.float32]:
    times = np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    return np.tile(np.sin(2 * np.pi * 440 * times).astype(np.float32) * 0.2, (2, 1))
