"""What is in the MP4: plays everywhere, sound as long as the picture and in step, the metadata unchanged."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from fixtures_media import HEIGHT, WIDTH, moving_square, mp4_writer, read_mp4, tone, write_mp4

from yellowsound.clip import read_metadata
from yellowsound.stages.mp4 import exact_frame_rate
from yellowsound.stages.soundtrack import fit, whole_aac_samples


@pytest.mark.parametrize(
    "count, rate, exact, seconds",
    [
        (13, 24, Fraction(24), 0.541667),
        (5, 24, Fraction(24), 0.208333),
        (1, 24, Fraction(24), 0.041667),
        (13, 23.976, Fraction(24000, 1001), 0.542208),
        (13, 12, Fraction(12), 1.083333),
        (13, 30, Fraction(30), 0.433333),
        (13, 29.97, Fraction(30000, 1001), 0.433767),
        (13, 12.5, Fraction(25, 2), 1.04),
        (121, 24, Fraction(24), 5.041667),
    ],
)
def test_sound_is_as_long_as_the_picture(
    tmp_path: Path, count: int, rate: float, exact: Fraction, seconds: float
) -> None:
    facts = write_mp4(tmp_path / "clip.mp4", count, rate)
    assert facts.video["rate"] == exact and len(facts.frames) == count
    assert facts.container_seconds == pytest.approx(seconds, abs=0.001)
    assert facts.container_seconds == pytest.approx(count / rate, abs=0.001)
    assert facts.video["seconds"] == pytest.approx(seconds, abs=0.001)
    assert facts.audio is not None and facts.sound is not None
    assert seconds - 0.024 <= facts.audio["seconds"] <= seconds + 0.001
    assert round(facts.audio["seconds"] * 44_100, 6) % 1024 == 0  # the edit list loses no sample
    assert facts.sound.shape == (1, int(seconds * 44_100 + 0.5) // 1024 * 1024)
    assert np.abs(facts.sound[:, -44:]).max() <= 0.05  # the cut of a steady tone of 0.5 is faded
    assert np.abs(facts.sound[:, 100:-900]).max() == pytest.approx(0.5, abs=0.05)


def test_121_frames_hold_217_whole_aac_frames() -> None:
    assert whole_aac_samples(121, Fraction(24), 44_100) == 217 * 1024  # of 222,337.5 samples of picture


@pytest.mark.parametrize("sound_first", [True, False])
def test_plays_everywhere(tmp_path: Path, sound_first: bool) -> None:
    with mp4_writer(tmp_path / "clip.mp4", 49) as out:
        if sound_first:
            out.write_audio(tone(3))
        for start in range(0, 49, 17):
            out.write_frames(moving_square(49)[start : start + 17])
        if not sound_first:
            out.write_audio(tone(3))
    facts = read_mp4(tmp_path / "clip.mp4")
    assert facts.boxes.index("moov") < facts.boxes.index("mdat")
    video, audio = facts.video, facts.audio
    assert (video["codec"], video["profile"], video["b_frames"]) == ("h264", "Main", False)
    assert video["pixels"] == "yuv420p" and video["size"] == (96, 64)
    assert video["colour"] == (1, 1, 1, 1)  # limited range; bt709 matrix, primaries, transfer
    assert audio is not None
    assert (audio["codec"], audio["profile"], audio["rate"], audio["layout"]) == ("aac", "LC", 44_100, "mono")
    assert video["start"] == 0 and audio["start"] == 0
    stamps = [stamp for kind, stamp, _ in facts.packets if kind == "video"]
    assert np.diff(stamps).min() == np.diff(stamps).max()  # constant frame rate, in order: no B-frames


@pytest.mark.parametrize("sound_first", [True, False])
def test_sound_and_picture_are_interleaved(tmp_path: Path, sound_first: bool) -> None:
    """A player that reads from the start needs both: no second of the one lies far from the same of the other."""
    with mp4_writer(tmp_path / "clip.mp4", 121) as out:
        for turn in (sound_first, not sound_first):
            if turn:
                out.write_audio(tone(5.1))
            else:
                out.write_frames(moving_square(121))
    facts = read_mp4(tmp_path / "clip.mp4")
    in_file = sorted(facts.packets, key=lambda packet: packet[2])
    latest = {"video": 0.0, "audio": 0.0}
    for kind, stamp, _ in in_file:
        latest[kind] = stamp / (512 * 24 if kind == "video" else 44_100)
        if max(latest.values()) < 121 / 24 - 0.2:
            assert abs(latest["video"] - latest["audio"]) < 0.6
    assert len(in_file) == 121 + 218


def test_decoded_sound_is_in_step(tmp_path: Path) -> None:
    """The encoder's 1024 samples of priming are skipped: the first sample out is the first one in."""
    noise = (0.2 * np.random.default_rng(1).standard_normal((1, 60_000))).clip(-0.9, 0.9).astype(np.float32)
    facts = write_mp4(tmp_path / "clip.mp4", 25, sound=noise)
    assert facts.sound is not None
    heard, given = facts.sound[0, 4096:30_000], noise[0]
    match = [float(heard @ given[4096 + lag : 30_000 + lag]) for lag in range(-1100, 1100)]
    assert int(np.argmax(match)) - 1100 == 0


def test_stereo_stays_stereo(tmp_path: Path) -> None:
    left_only = np.concatenate([tone(1), np.zeros_like(tone(1))])
    facts = write_mp4(tmp_path / "clip.mp4", sound=left_only)
    assert facts.audio is not None and facts.audio["layout"] == "stereo"
    assert facts.sound is not None
    assert np.abs(facts.sound[0]).max() > 0.4 and np.abs(facts.sound[1]).max() < 0.02


def test_short_sound_is_followed_by_silence(tmp_path: Path) -> None:
    facts = write_mp4(tmp_path / "clip.mp4", 25, sound=tone(0.5))
    assert facts.sound is not None and facts.sound.shape[1] == whole_aac_samples(25, Fraction(24), 44_100)
    assert np.abs(facts.sound[:, 26_000:]).max() < 0.01 < 0.4 < np.abs(facts.sound[:, 5000:20_000]).max()


def test_clip_without_sound(tmp_path: Path) -> None:
    with mp4_writer(tmp_path / "clip.mp4", 5, sample_rate=None) as out:
        out.write_frames(moving_square(5))
        with pytest.raises(ValueError, match="no sound track"):
            out.write_audio(tone(1))
    facts = read_mp4(tmp_path / "clip.mp4")
    assert facts.audio is None and len(facts.frames) == 5
    assert facts.container_seconds == pytest.approx(0.208333, abs=0.001)


def test_colours_survive(tmp_path: Path) -> None:
    """bt709, as tagged: a conversion by bt601 would show green as (0, 216, 0)."""
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0), (10, 200, 120)]
    frames = np.stack([np.full((HEIGHT, WIDTH, 3), colour, np.uint8) for colour in colours])
    with mp4_writer(tmp_path / "clip.mp4", len(colours), sample_rate=None) as out:
        out.write_frames(frames)
    seen = read_mp4(tmp_path / "clip.mp4").frames.mean(axis=(1, 2))
    assert np.abs(seen - colours).max() <= 3


@pytest.mark.parametrize(
    "prompt",
    ["猫" * 90, "**Phase 1** a/b\\c:d", "../../x", "two\nlines", "👨‍👩‍👧‍👦", '"q" & <b> \u0007', "é" * 32_000],
    ids=["chinese", "marks", "dots", "lines", "emoji", "quotes", "longest"],
)
def test_metadata_comes_back_unchanged(tmp_path: Path, prompt: str) -> None:
    metadata = {"prompt": prompt, "seed": 2**63 - 1, "settings": {"size": [96, 64]}, "level": "exact", "none": None}
    facts = write_mp4(tmp_path / "clip.mp4", 5, metadata=metadata)
    assert read_metadata(tmp_path / "clip.mp4") == metadata
    assert facts.tags["title"] == " ".join(prompt.split())[:80]


def test_metadata_of_foreign_files_is_refused(tmp_path: Path) -> None:
    with mp4_writer(tmp_path / "clip.mp4", 1, sample_rate=None, metadata={}) as out:
        out.write_frames(moving_square(1))
    assert read_metadata(tmp_path / "clip.mp4") == {}
    whole = (tmp_path / "clip.mp4").read_bytes()
    for content in (b"no film", b"", whole[:100], whole.replace(b"{}", b"[]"), whole.replace(b"{}", b"{x")):
        (tmp_path / "foreign.mp4").write_bytes(content)
        with pytest.raises(ValueError, match=r"foreign\.mp4: no yellowsound metadata"):
            read_metadata(tmp_path / "foreign.mp4")
    with pytest.raises(FileNotFoundError):
        read_metadata(tmp_path / "none.mp4")


@pytest.mark.parametrize(
    "given, meant",
    [
        (24.0, Fraction(24)),
        (23.976, Fraction(24000, 1001)),
        (24000 / 1001, Fraction(24000, 1001)),
        (29.97, Fraction(30000, 1001)),
        (59.94, Fraction(60000, 1001)),
        (47.952, Fraction(48000, 1001)),
        (119.88, Fraction(120000, 1001)),
        (12.5, Fraction(25, 2)),
        (7.3, Fraction(73, 10)),
        (1.0, Fraction(1)),
    ],
)
def test_frame_rates_are_exact(given: float, meant: Fraction) -> None:
    assert exact_frame_rate(given) == meant


def test_level_is_an_rms_in_dbfs_below_the_peak_ceiling() -> None:
    quiet = tone(1, peak=0.01)
    raised = fit(quiet, 43_008, 44_100, audio_level=-20.0)[:, :40_000]
    assert 20 * np.log10(np.sqrt(np.mean(raised**2))) == pytest.approx(-20, abs=0.1)
    peaky = quiet.copy()
    peaky[0, 1000] = 0.5
    assert np.abs(fit(peaky, 43_008, 44_100, audio_level=-3.0)).max() == pytest.approx(10 ** (-1 / 20), abs=1e-4)
    assert not fit(np.zeros((1, 44_100), np.float32), 43_008, 44_100, audio_level=-20.0).any()
    untouched = fit(quiet, 43_008, 44_100)
    assert np.array_equal(untouched[:, :-441], quiet[:, : 43_008 - 441])
    assert np.abs(fit(4 * tone(1), 43_008, 44_100)).max() == 1.0
