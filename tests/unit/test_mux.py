"""The writer: encodes while frames arrive, overwrites nothing unasked, leaves a whole file or none."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures_media import HEIGHT, WIDTH, moving_square, mp4_writer, read_mp4, tone, write_mp4

from yellowsound.clip import read_metadata
from yellowsound.request import RequestError
from yellowsound.stages import destination, mux
from yellowsound.stages.mp4 import Mp4Encoder
from yellowsound.stages.mux import check_destination


def files_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@pytest.mark.parametrize("level", [float("nan"), 3.0, -100.0, "loud", True])
def test_senseless_levels_are_refused(tmp_path: Path, level: Any) -> None:
    with pytest.raises(RequestError, match="audio_level"):
        mp4_writer(tmp_path / "clip.mp4", audio_level=level)
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
        mp4_writer(tmp_path / "clip.mp4", **changes)
    assert caught.value.field == field
    assert files_in(tmp_path) == []


def test_wrong_arrays_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="of 13 frames"), mp4_writer(tmp_path / "clip.mp4") as out:
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
    with pytest.raises(ValueError, match=words), mp4_writer(tmp_path / "clip.mp4") as out:
        out.write_audio(sound)
    assert files_in(tmp_path) == []


def test_missing_sound_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no sound was written"), mp4_writer(tmp_path / "clip.mp4", 5) as out:
        out.write_frames(moving_square(5))
    assert files_in(tmp_path) == []


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match=r"clip\.mp4 exists already: choose another name"):
        mp4_writer(path)
    assert path.read_text() == "mine" and files_in(tmp_path) == ["clip.mp4"]
    write_mp4(path, 5, overwrite=True)
    assert read_metadata(path)["seed"] == 7 and files_in(tmp_path) == ["clip.mp4"]


@pytest.mark.parametrize("hard_links", [True, False])
def test_a_file_that_appears_meanwhile_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hard_links: bool
) -> None:
    if not hard_links:
        monkeypatch.setattr(os, "link", refuse_links)
    path = tmp_path / "clip.mp4"
    out = mp4_writer(path, 5)
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
    assert len(write_mp4(tmp_path / "clip.mp4", 5).frames) == 5
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
    write_mp4(tmp_path / "clip.mp4", 5)
    (tmp_path / "other").touch()
    assert (tmp_path / "clip.mp4").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_while_it_is_written_only_a_hidden_file_is_there(tmp_path: Path) -> None:
    out = mp4_writer(tmp_path / "clip.mp4")
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
    with pytest.raises(KeyboardInterrupt), mp4_writer(tmp_path / "clip.mp4") as out:
        out.write_audio(tone(1))
        out.write_frames(moving_square(5))
        raise KeyboardInterrupt
    assert files_in(tmp_path) == [] and threading.active_count() == before


def test_closing_twice_is_one_close(tmp_path: Path) -> None:
    out = mp4_writer(tmp_path / "clip.mp4", 5, sample_rate=None)
    out.write_frames(moving_square(5))
    assert out.close() == out.close() == tmp_path / "clip.mp4"
    out.abort()
    assert files_in(tmp_path) == ["clip.mp4"]


def test_frames_may_be_reused_by_the_caller(tmp_path: Path) -> None:
    buffer = np.empty((1, HEIGHT, WIDTH, 3), np.uint8)
    with mp4_writer(tmp_path / "clip.mp4", 20, sample_rate=None) as out:
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
    out = mp4_writer(tmp_path / "clip.mp4", 40, sample_rate=None)
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
    def on_full_disk(folder: Path) -> tuple[Path, int]:
        (folder / ".full.part").symlink_to("/dev/full")
        return folder / ".full.part", os.open(os.devnull, os.O_RDONLY)

    noise = np.random.default_rng(0).integers(0, 256, (121, HEIGHT, WIDTH, 3), dtype=np.uint8)
    monkeypatch.setattr(mux, "create_temporary", on_full_disk)
    full = pytest.raises(OSError, match=r"cannot write .*clip\.mp4: no space left")
    with full as caught, mp4_writer(tmp_path / "clip.mp4", 121) as out:
        out.write_audio(tone(5.1))
        out.write_frames(noise)
    assert caught.value.errno == errno.ENOSPC
    assert files_in(tmp_path) == []


def test_what_a_killed_writer_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    def age(path: Path) -> Path:
        os.utime(path, (0, 0))
        return path

    left, young, other = (tmp_path / name for name in (".yellowsound-1.part", ".yellowsound-2.part", "notes.part"))
    for path in (left, young, other):
        path.touch()
    with mp4_writer(tmp_path / "one.mp4", 1) as running:
        (own,) = set(files_in(tmp_path)) - {left.name, young.name, other.name}
        age(left), age(other), age(tmp_path / own)
        with mp4_writer(tmp_path / "two.mp4", 1) as second:
            assert set(files_in(tmp_path)) >= {own, young.name, other.name} and left.name not in files_in(tmp_path)
            second.abort()
        running.abort()
    assert sorted(files_in(tmp_path)) == [young.name, other.name]


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
    write_mp4(path, 5)
    destination.check_whole(path)
    data = path.read_bytes()
    for cut in (0, 20, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:cut])
        with pytest.raises(OSError, match="did not reach the disk whole"):
            destination.check_whole(path)


def test_what_the_encoder_did_not_notice_is_found_before_publishing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = Mp4Encoder.finish

    def lose_the_end(self: Mp4Encoder) -> None:
        finish(self)
        (part,) = tmp_path.iterdir()
        os.truncate(part, part.stat().st_size - 1)

    monkeypatch.setattr(Mp4Encoder, "finish", lose_the_end)
    with pytest.raises(OSError, match="cannot write"):
        write_mp4(tmp_path / "clip.mp4", 5)
    assert files_in(tmp_path) == []


def test_an_unwritable_folder_is_named_at_once(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        folder = Path("/proc/self/fdinfo")  # root writes everywhere else
    else:
        folder = tmp_path / "locked"
        folder.mkdir(mode=0o500)
    with pytest.raises(OSError):
        mp4_writer(folder / "clip.mp4")


def test_after_an_error_the_next_call_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Mp4Encoder, frame: np.ndarray) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(Mp4Encoder, "encode_frame", fail)
    out = mp4_writer(tmp_path / "clip.mp4", 121, sample_rate=None)
    out.write_frames(moving_square(1))
    deadline = time.monotonic() + 30
    with pytest.raises(OSError, match="no space left"):
        while time.monotonic() < deadline and out._frames_given < 120:
            out.write_frames(moving_square(1))
            time.sleep(0.01)
    out.abort()
    assert files_in(tmp_path) == []
