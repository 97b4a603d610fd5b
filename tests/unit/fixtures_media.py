"""Helpers of the media tests: what an MP4 says about itself, and pictures of every kind people send."""

from __future__ import annotations

import io
import struct
import zlib
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image, ImageDraw

from yellowsound.stages.mux import Mp4Writer

WIDTH, HEIGHT = 96, 64
RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


@dataclass(frozen=True, slots=True)
class Mp4Facts:
    """What the container and its streams declare, and what comes out of the decoder."""

    boxes: list[str]
    video: dict[str, Any]
    audio: dict[str, Any] | None
    container_seconds: float
    tags: dict[str, str]
    frames: np.ndarray
    sound: np.ndarray | None
    packets: list[tuple[str, int, int]]  # type, time stamp, position in the file


def read_mp4(path: Path) -> Mp4Facts:
    with av.open(str(path)) as container:
        facts = _declared(container)
    with av.open(str(path)) as container:
        frames = [f.to_ndarray(format="rgb24", src_colorspace="ITU709") for f in container.decode(video=0)]
    with av.open(str(path)) as container:
        sound = [f.to_ndarray() for f in container.decode(audio=0)] if container.streams.audio else None
    with av.open(str(path)) as container:
        packets = [(p.stream.type, p.pts, p.pos) for p in container.demux() if p.size]
    return Mp4Facts(
        boxes=top_boxes(path.read_bytes()),
        frames=np.stack(frames),
        sound=None if sound is None else np.concatenate(sound, axis=1),
        packets=packets,
        **facts,
    )


def _declared(container: Any) -> dict[str, Any]:
    video = container.streams.video[0]
    context = video.codec_context
    facts = {
        "codec": context.name,
        "profile": context.profile,
        "b_frames": context.has_b_frames,
        "pixels": context.pix_fmt,
        "size": (context.width, context.height),
        "colour": tuple(
            int(v) for v in (context.color_range, context.colorspace, context.color_primaries, context.color_trc)
        ),
        "rate": Fraction(video.average_rate.numerator, video.average_rate.denominator),
    }
    audio = container.streams.audio[0] if container.streams.audio else None
    return {
        "video": {**facts, **_times(video)},
        "audio": None if audio is None else {**_audio_facts(audio), **_times(audio)},
        "container_seconds": container.duration / 1e6,
        "tags": dict(container.metadata),
    }


def _audio_facts(audio: Any) -> dict[str, Any]:
    context = audio.codec_context
    return {
        "codec": context.name,
        "profile": context.profile,
        "rate": context.sample_rate,
        "layout": context.layout.name,
    }


def _times(stream: Any) -> dict[str, float]:
    return {
        "start": float((stream.start_time or 0) * stream.time_base),
        "seconds": float(stream.duration * stream.time_base),
    }


def top_boxes(data: bytes) -> list[str]:
    """Names of the outermost MP4 boxes, in order; fails where they do not fill the file."""
    names, position = [], 0
    while position < len(data):
        length, name = struct.unpack(">I4s", data[position : position + 8])
        if length == 1:
            (length,) = struct.unpack(">Q", data[position + 8 : position + 16])
        names.append(name.decode("latin1"))
        position += length
    assert position == len(data)
    return names


def tone(seconds: float, sample_rate: int = 44_100, peak: float = 0.5, hertz: float = 440.0) -> np.ndarray:
    """A steady sine, float32 (1, samples)."""
    times = np.arange(round(seconds * sample_rate)) / sample_rate
    return (peak * np.sin(2 * np.pi * hertz * times)).astype(np.float32)[None]


def moving_square(count: int) -> np.ndarray:
    frames = np.full((count, HEIGHT, WIDTH, 3), 90, np.uint8)
    for index, frame in enumerate(frames):
        frame[16:48, index % 32 : index % 32 + 32] = (220, 180, 40)
    return frames


def mp4_writer(path: Path, count: int = 13, rate: float = 24.0, **changes: Any) -> Mp4Writer:
    settings: dict[str, Any] = {"width": WIDTH, "height": HEIGHT, "num_frames": count, "frame_rate": rate}
    settings |= {"sample_rate": 44_100, "metadata": {"prompt": "a cat", "seed": 7}}
    return Mp4Writer(path, **(settings | changes))


def write_mp4(
    path: Path, count: int = 13, rate: float = 24.0, sound: np.ndarray | None = None, **changes: Any
) -> Mp4Facts:
    with mp4_writer(path, count, rate, **changes) as out:
        out.write_audio(tone(count / rate + 0.01) if sound is None else sound)
        out.write_frames(moving_square(count))
    return read_mp4(path)


def halves() -> Image.Image:
    """400x200, left half red, right half blue: shows every mirror and turn."""
    picture = Image.new("RGB", (400, 200), BLUE)
    ImageDraw.Draw(picture).rectangle([0, 0, 199, 199], fill=RED)
    return picture


def encoded(picture: Image.Image, image_format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, image_format, **options)
    return buffer.getvalue()


def noise(width: int, height: int) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def blank_png(width: int, height: int) -> bytes:
    """A one-bit PNG of a few KB that unpacks to ``width`` x ``height``."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    packer = zlib.compressobj(9)
    row = b"\0" * (1 + (width + 7) // 8)
    rows = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def rgb16_png(width: int, height: int, colour: tuple[int, int, int]) -> bytes:
    """A PNG with 16 bits a channel, which Pillow reads but does not write."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = (b"\0" + struct.pack(">HHH", *colour) * width) * height
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def grey_cyan_profile() -> bytes:
    """An ICC profile (version 2, lut8) of a press whose cyan ink alone prints grey of L* 50; all else prints black."""
    identity = bytes(range(256))
    corners = b"".join(bytes([{0: 255, 8: 128}.get(inks, 0), 128, 128]) for inks in range(16))  # bits: C M Y K
    lut = b"mft1" + bytes(4) + bytes([4, 3, 2, 0])
    lut += struct.pack(">9i", *(65536 if i in (0, 4, 8) else 0 for i in range(9)))
    lut += identity * 4 + corners + identity * 3
    return _profile(b"prtrCMYKLab ", [(b"A2B0", lut)])


def swapped_rgb_profile() -> bytes:
    """An ICC profile of a screen with sRGB's primaries, red and green exchanged, and gamma 2.2."""

    def column(x: float, y: float, z: float) -> bytes:
        return b"XYZ " + bytes(4) + struct.pack(">3i", *(round(v * 65536) for v in (x, y, z)))

    gamma = b"curv" + bytes(4) + struct.pack(">IH", 1, round(2.2 * 256))
    red, green, blue = column(0.4361, 0.2225, 0.0139), column(0.3851, 0.7169, 0.0971), column(0.1431, 0.0606, 0.7141)
    columns = [(b"rXYZ", green), (b"gXYZ", red), (b"bXYZ", blue)]
    return _profile(b"mntrRGB XYZ ", columns + [(name, gamma) for name in (b"rTRC", b"gTRC", b"bTRC")])


def _profile(kind: bytes, tags: list[tuple[bytes, bytes]]) -> bytes:
    """A version 2 profile of ``kind`` (class, space, connection space) with its description and white point."""
    text = b"test\0"
    description = b"desc" + bytes(4) + struct.pack(">I", len(text)) + text + bytes(4 + 4 + 2 + 1 + 67)
    white = b"XYZ " + bytes(4) + struct.pack(">3i", 63190, 65536, 54061)
    tags = [(b"desc", description), (b"wtpt", white), *tags]
    table, body = struct.pack(">I", len(tags)), b""
    start = 128 + 4 + 12 * len(tags)
    for name, data in tags:
        table += name + struct.pack(">II", start + len(body), len(data))
        body += data + bytes(-len(data) % 4)
    header = struct.pack(">I4sI", start + len(body), bytes(4), 0x02400000) + kind
    header += struct.pack(">6H", 2026, 1, 1, 0, 0, 0) + b"acsp" + bytes(28) + struct.pack(">3i", 63190, 65536, 54061)
    return header.ljust(128, b"\0") + table + body
