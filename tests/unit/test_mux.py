"""The MP4: plays everywhere, sound as long as the picture and in step, whole or not there at all."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures_media import Mp4Facts, read_mp4, tone

from yellowsound.clip import read_metadata
from yellowsound.request import RequestError
from yellowsound.stages import destination, mux
from yellowsound.stages.mp4 import Mp4Encoder, exact_frame_rate
from yellowsound.stages.mux import Mp4Writer, check_destination
from yellowsound.stages.soundtrack import fit, whole_aac_samples

WIDTH, HEIGHT = 96, 64


def moving_square(count: int, width: int = WIDTH, height: int = HEIGHT) -> np.ndarray:
    frames = np.full((count, height, width, 3), 90, np.uint8)
    for index, frame in enumerate(frames):
        frame[16:48, index % 32 : index % 32 + 32] = (220, 180, 40)
    return frames


def writer(path: Path, count: int = 13, rate: float = 24.0, **changes: Any) -> Mp4Writer:
    settings: dict[str, Any] = {"width": WIDTH, "height": HEIGHT, "num_frames": count, "frame_rate": rate}
    settings |= {"sample_rate": 44_100, "metadata": {"prompt": "a cat", "seed": 7}}
    return Mp4Writer(path, **(settings | changes))


def write(path: Path, count: int = 13, rate: float = 24.0, sound: np.ndarray | None = None, **changes: Any) -> Mp4Facts:
    with writer(path, count, rate, **changes) as out:
        out.write_audio(tone(count / rate + 0.01) if sound is None else sound)
        out.write_frames(moving_square(count))
    return read_mp4(path)


def files_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


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
    facts = write(tmp_path / "clip.mp4", count, rate)
    assert facts.video["rate"] == exact and len(facts.frames) == count
    assert facts.container_seconds == pytest.approx(seconds, abs=0.001)
    assert facts.container_seconds == pytest.approx(count / rate, abs=0.001)
    assert facts.video["seconds"] == pytest.approx(seconds, abs=0.001)
    assert facts.audio is not None and facts.sound is not None
    assert seconds - 0.024 <= facts.audio["seconds"] <= seconds + 0.001
    assert facts.sound.shape == (1, int(seconds * 44_100 + 0.5) // 1024 * 1024)
    assert np.abs(facts.sound[:, -44:]).max() <= 0.05  # the cut of a steady tone of 0.5 is faded
    assert np.abs(facts.sound[:, 100:-900]).max() == pytest.approx(0.5, abs=0.05)


def test_121_frames_hold_217_whole_aac_frames() -> None:
    assert whole_aac_samples(121, Fraction(24), 44_100) == 217 * 1024  # of 222,337.5 samples of picture


@pytest.mark.parametrize("sound_first", [True, False])
def test_plays_everywhere(tmp_path: Path, sound_first: bool) -> None:
    with writer(tmp_path / "clip.mp4", 49) as out:
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
    with writer(tmp_path / "clip.mp4", 121) as out:
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
    facts = write(tmp_path / "clip.mp4", 25, sound=noise)
    assert facts.sound is not None
    heard, given = facts.sound[0, 4096:30_000], noise[0]
    match = [float(heard @ given[4096 + lag : 30_000 + lag]) for lag in range(-1100, 1100)]
    assert int(np.argmax(match)) - 1100 == 0


def test_stereo_stays_stereo(tmp_path: Path) -> None:
    left_only = np.concatenate([tone(1), np.zeros_like(tone(1))])
    facts = write(tmp_path / "clip.mp4", sound=left_only)
    assert facts.audio is not None and facts.audio["layout"] == "stereo"
    assert facts.sound is not None
    assert np.abs(facts.sound[0]).max() > 0.4 and np.abs(facts.sound[1]).max() < 0.02


def test_short_sound_is_followed_by_silence(tmp_path: Path) -> None:
    facts = write(tmp_path / "clip.mp4", 25, sound=tone(0.5))
    assert facts.sound is not None and facts.sound.shape[1] == whole_aac_samples(25, Fraction(24), 44_100)
    assert np.abs(facts.sound[:, 26_000:]).max() < 0.01 < 0.4 < np.abs(facts.sound[:, 5000:20_000]).max()


def test_clip_without_sound(tmp_path: Path) -> None:
    with writer(tmp_path / "clip.mp4", 5, sample_rate=None) as out:
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
    with writer(tmp_path / "clip.mp4", len(colours), sample_rate=None) as out:
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
    facts = write(tmp_path / "clip.mp4", 5, metadata=metadata)
    assert read_metadata(tmp_path / "clip.mp4") == metadata
    assert facts.tags["title"] == " ".join(prompt.split())[:80]


def test_metadata_of_foreign_files_is_refused(tmp_path: Path) -> None:
    with writer(tmp_path / "clip.mp4", 1, sample_rate=None, metadata={}) as out:
        out.write_frames(moving_square(1))
    assert read_metadata(tmp_path / "clip.mp4") == {}
    (tmp_path / "text.mp4").write_text("no film")
    with pytest.raises(ValueError, match="no yellowsound metadata"):
        read_metadata(tmp_path / "text.mp4")
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


@pytest.mark.parametrize("level", [float("nan"), 3.0, -100.0, "loud", True])
def test_senseless_levels_are_refused(tmp_path: Path, level: Any) -> None:
    with pytest.raises(RequestError, match="audio_level"):
        writer(tmp_path / "clip.mp4", audio_level=level)
    assert files_in(tmp_path) == []


@pytest.mark.parametrize(
    "changes, field",
    [
        ({"width": 97}, "width"),
        ({"height": 63}, "height"),
        ({"num_frames": 0}, "num_frames"),
        ({"frame_rate": 0}, "frame_rate"),
        ({"frame_rate": float("nan")}, "frame_rate"),
        ({"sample_rate": 44_000}, "sample_rate"),
        ({"num_frames": 1, "frame_rate": 60}, "num_frames"),
    ],
)
def test_impossible_settings_are_refused_before_encoding(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        writer(tmp_path / "clip.mp4", **changes)
    assert caught.value.field == field
    assert files_in(tmp_path) == []


def test_wrong_arrays_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="of 13 frames"), writer(tmp_path / "clip.mp4") as out:
        out.write_audio(tone(1))
        with pytest.raises(ValueError, match="uint8"):
            out.write_frames(moving_square(2).astype(np.float32))
        with pytest.raises(ValueError, match="uint8"):
            out.write_frames(moving_square(2)[:, :32])
        with pytest.raises(ValueError, match="14 frames for a clip of 13"):
            out.write_frames(moving_square(14))
        with pytest.raises(ValueError, match="already"):
            out.write_audio(tone(1))
    assert files_in(tmp_path) == []


@pytest.mark.parametrize(
    "sound, words",
    [
        (np.full((1, 30_000), np.nan, np.float32), "not finite"),
        (np.zeros((3, 30_000), np.float32), "1 or 2 channels"),
        (np.zeros(30_000, np.float32), "1 or 2 channels"),
        (np.zeros((1, 30_000), np.int16), "float32"),
    ],
)
def test_wrong_sound_is_refused(tmp_path: Path, sound: np.ndarray, words: str) -> None:
    with pytest.raises(ValueError, match=words), writer(tmp_path / "clip.mp4") as out:
        out.write_audio(sound)
    assert files_in(tmp_path) == []


def test_missing_sound_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no sound was written"), writer(tmp_path / "clip.mp4", 5) as out:
        out.write_frames(moving_square(5))
    assert files_in(tmp_path) == []


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match=r"clip\.mp4 exists already: choose another name"):
        writer(path)
    assert path.read_text() == "mine" and files_in(tmp_path) == ["clip.mp4"]
    write(path, 5, overwrite=True)
    assert read_metadata(path)["seed"] == 7 and files_in(tmp_path) == ["clip.mp4"]


@pytest.mark.parametrize("hard_links", [True, False])
def test_a_file_that_appears_meanwhile_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hard_links: bool
) -> None:
    if not hard_links:
        monkeypatch.setattr(os, "link", refuse_links)
    path = tmp_path / "clip.mp4"
    out = writer(path, 5)
    out.write_audio(tone(1))
    out.write_frames(moving_square(5))
    path.write_text("theirs")
    with pytest.raises(FileExistsError, match="exists already"):
        out.close()
    assert path.read_text() == "theirs" and files_in(tmp_path) == ["clip.mp4"]


def refuse_links(*_: object) -> None:
    raise OSError(errno.EPERM, "this file system has no hard links")


def test_file_systems_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", refuse_links)
    assert len(write(tmp_path / "clip.mp4", 5).frames) == 5
    assert files_in(tmp_path) == ["clip.mp4"]


def test_destinations_are_checked_first(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"must end in \.mp4; nearest legal value: clip\.mov\.mp4"):
        check_destination(tmp_path / "clip.mov")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        check_destination(tmp_path / "none" / "clip.mp4")
    (tmp_path / "folder.mp4").mkdir()
    with pytest.raises(IsADirectoryError):
        check_destination(tmp_path / "folder.mp4", overwrite=True)
    with pytest.raises(OSError, match="too long"):
        check_destination(tmp_path / ("x" * 300 + ".mp4"))
    (tmp_path / "dangling.mp4").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError):
        check_destination(tmp_path / "dangling.mp4")


def test_new_files_get_the_usual_permissions(tmp_path: Path) -> None:
    write(tmp_path / "clip.mp4", 5)
    (tmp_path / "other").touch()
    assert (tmp_path / "clip.mp4").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_while_it_is_written_only_a_hidden_file_is_there(tmp_path: Path) -> None:
    out = writer(tmp_path / "clip.mp4")
    out.write_audio(tone(1))
    out.write_frames(moving_square(5))
    (name,) = files_in(tmp_path)
    assert name.startswith(".") and not name.endswith(".mp4")
    out.abort()
    assert files_in(tmp_path) == []
    out.abort()
    with pytest.raises(ValueError, match="closed"):
        out.write_frames(moving_square(1))


def test_an_error_in_the_block_leaves_no_file_and_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt), writer(tmp_path / "clip.mp4") as out:
        out.write_audio(tone(1))
        out.write_frames(moving_square(5))
        raise KeyboardInterrupt
    assert files_in(tmp_path) == [] and threading.active_count() == before


def test_closing_twice_is_one_close(tmp_path: Path) -> None:
    out = writer(tmp_path / "clip.mp4", 5, sample_rate=None)
    out.write_frames(moving_square(5))
    assert out.close() == out.close() == tmp_path / "clip.mp4"
    out.abort()
    assert files_in(tmp_path) == ["clip.mp4"]


def test_frames_may_be_reused_by_the_caller(tmp_path: Path) -> None:
    buffer = np.empty((1, HEIGHT, WIDTH, 3), np.uint8)
    with writer(tmp_path / "clip.mp4", 20, sample_rate=None) as out:
        for index in range(20):
            buffer[:] = 12 * index
            out.write_frames(buffer)
    levels = read_mp4(tmp_path / "clip.mp4").frames.mean(axis=(1, 2, 3))
    assert np.abs(levels - 12 * np.arange(20)).max() < 3


def test_encoding_goes_on_while_frames_are_made_and_never_piles_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go, encoded = threading.Event(), threading.Event(), []
    encode_frame = Mp4Encoder.encode_frame

    def held(self: Mp4Encoder, frame: np.ndarray) -> None:
        begun.set()
        assert go.wait(30)
        encode_frame(self, frame)
        encoded.append(len(encoded))

    monkeypatch.setattr(Mp4Encoder, "encode_frame", held)
    out = writer(tmp_path / "clip.mp4", 40, sample_rate=None)
    out.write_frames(moving_square(1))
    assert begun.wait(30)  # by another thread, before close
    out.write_frames(moving_square(mux.QUEUED_FRAMES))  # the queue takes these without waiting
    rest = threading.Thread(target=out.write_frames, args=(moving_square(39 - mux.QUEUED_FRAMES),))
    rest.start()
    rest.join(0.2)
    assert rest.is_alive() and not encoded  # full: the caller waits instead of filling the memory
    go.set()
    rest.join(30)
    out.close()
    assert len(encoded) == 40 and len(read_mp4(tmp_path / "clip.mp4").frames) == 40


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's always full device")
def test_a_full_disk_is_named_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def on_full_disk(folder: Path) -> Path:
        (folder / ".full.part").symlink_to("/dev/full")
        return folder / ".full.part"

    noise = np.random.default_rng(0).integers(0, 256, (121, HEIGHT, WIDTH, 3), dtype=np.uint8)
    monkeypatch.setattr(mux, "create_temporary", on_full_disk)
    full = pytest.raises(OSError, match=r"cannot write .*clip\.mp4: no space left")
    with full as caught, writer(tmp_path / "clip.mp4", 121) as out:
        out.write_audio(tone(5.1))
        out.write_frames(noise)
    assert caught.value.errno == errno.ENOSPC
    assert files_in(tmp_path) == []


def test_any_write_that_fails_is_noticed(tmp_path: Path) -> None:
    """Under a limit on file size, wherever it strikes: an error and no file, or a whole file."""
    script = (
        "import resource, sys, numpy as np\n"
        "from yellowsound.stages.mux import Mp4Writer\n"
        "limit = int(sys.argv[2])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))\n"
        "noise = np.random.default_rng(0).integers(0, 256, (5, 64, 96, 3), dtype=np.uint8)\n"
        "settings = dict(width=96, height=64, num_frames=5, frame_rate=24, sample_rate=44100, metadata={})\n"
        "with Mp4Writer(sys.argv[1], **settings) as out:\n"
        "    out.write_audio(np.zeros((1, 9000), np.float32))\n"
        "    out.write_frames(noise)\n"
    )
    whole = tmp_path / "whole.mp4"
    subprocess.run([sys.executable, "-c", script, str(whole), str(10**7)], check=True)
    size = whole.stat().st_size
    for limit in (1000, size // 2, size - 1500, size - 1, size):
        path = tmp_path / f"{limit}.mp4"
        done = subprocess.run([sys.executable, "-c", script, str(path), str(limit)], capture_output=True, text=True)
        assert (done.returncode == 0) == (limit == size) == path.exists(), (limit, size, done.stderr)
        assert limit == size or "OSError: [Errno 27] cannot write" in done.stderr
    assert files_in(tmp_path) == sorted(["whole.mp4", f"{size}.mp4"])


def test_a_file_that_lost_its_end_is_not_published(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    write(path, 5)
    destination.check_whole(path)
    data = path.read_bytes()
    for cut in (0, 20, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:cut])
        with pytest.raises(OSError, match="did not reach the disk whole"):
            destination.check_whole(path)


def test_an_unwritable_folder_is_named_at_once(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        folder = Path("/proc/self/fdinfo")  # root writes everywhere else
    else:
        folder = tmp_path / "locked"
        folder.mkdir(mode=0o500)
    with pytest.raises(OSError):
        writer(folder / "clip.mp4")


def test_after_an_error_the_next_call_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Mp4Encoder, frame: np.ndarray) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(Mp4Encoder, "encode_frame", fail)
    out = writer(tmp_path / "clip.mp4", 121, sample_rate=None)
    out.write_frames(moving_square(1))
    deadline = time.monotonic() + 30
    with pytest.raises(OSError, match="no space left"):
        while time.monotonic() < deadline and out._frames_given < 120:
            out.write_frames(moving_square(1))
            time.sleep(0.01)
    out.abort()
    assert files_in(tmp_path) == []
