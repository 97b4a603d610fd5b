"""Every picture people send comes out as the RGB they see, or is refused in one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from fixtures_media import (
    BLUE,
    GREEN,
    RED,
    blank_png,
    encoded,
    grey_cyan_profile,
    halves,
    noise,
    rgb16_png,
    swapped_rgb_profile,
)
from PIL import Image, ImageCms

from yellowsound.request import RequestError
from yellowsound.stages.image import load_image

WHITE = (255, 255, 255)


def middle(source: str | Path | bytes) -> tuple[int, ...]:
    image = load_image(source).image
    assert image.mode == "RGB"
    return image.getpixel((image.width // 2, image.height // 2))  # type: ignore[return-value]


def refusal(source: str | Path | bytes) -> str:
    with pytest.raises(RequestError) as caught:
        load_image(source)
    assert caught.value.field == "image"
    text = str(caught.value)
    assert "\n" not in text and len(text) < 250
    return text


def near(colour: tuple[int, ...], expected: tuple[int, ...], within: int) -> bool:
    return max(abs(a - b) for a, b in zip(colour, expected, strict=True)) <= within


# Where red and blue of `halves` are seen after each EXIF orientation: a point in the red half, one in the blue half.
SEEN = {
    1: ((400, 200), (100, 100), (300, 100)),
    2: ((400, 200), (300, 100), (100, 100)),
    3: ((400, 200), (300, 100), (100, 100)),
    4: ((400, 200), (100, 100), (300, 100)),
    5: ((200, 400), (100, 100), (100, 300)),
    6: ((200, 400), (100, 100), (100, 300)),
    7: ((200, 400), (100, 300), (100, 100)),
    8: ((200, 400), (100, 300), (100, 100)),
}


@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int, image_format: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = load_image(encoded(halves(), image_format, exif=exif, quality=95)).image
    size, red, blue = SEEN[orientation]
    assert image.size == size
    assert near(image.getpixel(red), RED, 6) and near(image.getpixel(blue), BLUE, 6)
    assert image.getexif().get(0x0112, 1) == 1  # nothing downstream may turn it again


def test_mirrored_orientations_differ_from_turned_ones() -> None:
    corner = Image.new("RGB", (64, 32), BLUE)
    corner.paste(RED, (0, 0, 32, 16))  # the top left quarter
    places = {}
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        image = load_image(encoded(corner, "PNG", exif=exif)).image
        quarters = [(x, y) for x in (1, 3) for y in (1, 3)]
        places[orientation] = next(
            (x, y) for x, y in quarters if image.getpixel((image.width * x // 4, image.height * y // 4)) == RED
        )
    left_top, right_top, right_bottom, left_bottom = (1, 1), (3, 1), (3, 3), (1, 3)
    assert places == {
        1: left_top, 2: right_top, 3: right_bottom, 4: left_bottom,
        5: left_top, 6: right_top, 7: right_bottom, 8: left_bottom,
    }  # fmt: skip


def test_damaged_exif_does_not_spoil_the_picture() -> None:
    loaded = load_image(encoded(halves(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xffgarbage", quality=95))
    assert loaded.image.size == (400, 200) and near(loaded.image.getpixel((100, 100)), RED, 6)


@pytest.mark.parametrize("value, expected", [(0, 0), (32768, 128), (65535, 255), (257 * 77, 77), (128, 0), (129, 1)])
def test_grey16_is_scaled_not_cut(value: int, expected: int) -> None:
    assert middle(encoded(Image.fromarray(np.full((200, 400), value, np.uint16)), "PNG")) == (expected,) * 3


def test_grey16_of_tiff_and_pgm() -> None:
    deep = Image.fromarray(np.full((40, 40), 32768, np.uint16))
    assert middle(encoded(deep, "TIFF")) == (128,) * 3
    assert middle(b"P5 40 40 65535\n" + b"\x80\x00" * 1600) == (128,) * 3


def test_float_grey_is_zero_to_one_or_refused() -> None:
    assert middle(encoded(Image.fromarray(np.full((40, 40), 0.5, np.float32)), "TIFF")) == (128,) * 3
    assert "outside 0 to 1" in refusal(encoded(Image.fromarray(np.full((40, 40), 200.0, np.float32)), "TIFF"))
    assert "outside 0 to 1" in refusal(encoded(Image.fromarray(np.full((40, 40), np.nan, np.float32)), "TIFF"))


def test_integer_grey_of_32_bits_is_16_bit_or_refused() -> None:
    assert middle(encoded(Image.fromarray(np.full((40, 40), 32768, np.int32)), "TIFF")) == (128,) * 3
    assert "outside 0 to 65535" in refusal(encoded(Image.fromarray(np.full((40, 40), -1, np.int32)), "TIFF"))


def test_rgb_of_16_bits() -> None:
    assert near(middle(rgb16_png(40, 40, (32768, 65535, 0))), (128, 255, 0), 1)


@pytest.mark.parametrize(
    "picture, image_format, options, expected",
    [
        (Image.new("L", (400, 200), 77), "PNG", {}, (77, 77, 77)),
        (Image.new("1", (400, 200), 1), "PNG", {}, WHITE),
        (Image.new("RGBA", (400, 200), (255, 0, 0, 0)), "PNG", {}, WHITE),
        (Image.new("RGBA", (400, 200), (255, 0, 0, 128)), "PNG", {}, (255, 127, 127)),
        (Image.new("RGBA", (400, 200), (255, 0, 0, 0)), "WEBP", {"lossless": True, "exact": True}, WHITE),
        (Image.new("LA", (400, 200), (0, 0)), "PNG", {}, WHITE),
        (Image.new("LA", (400, 200), (0, 255)), "PNG", {}, (0, 0, 0)),
        (Image.new("P", (400, 200), 0), "PNG", {"transparency": 0}, WHITE),
        (Image.new("RGB", (400, 200), GREEN), "PNG", {"transparency": GREEN}, WHITE),
        (Image.new("L", (400, 200), 9), "PNG", {"transparency": 9}, WHITE),
        (Image.fromarray(np.full((40, 40), 300, np.uint16)), "PNG", {"transparency": 300}, WHITE),
        (Image.new("RGB", (400, 200), RED), "BMP", {}, RED),
        (Image.new("RGB", (400, 200), RED), "AVIF", {"quality": 100, "subsampling": "4:4:4"}, RED),
    ],
    ids=lambda value: None,
)
def test_modes(picture: Image.Image, image_format: str, options: dict[str, object], expected: tuple[int, ...]) -> None:
    loaded = load_image(encoded(picture, image_format, **options))
    assert near(loaded.image.getpixel((20, 20)), expected, 1)
    assert loaded.warnings == ()


def test_palette_colours() -> None:
    picture = Image.new("P", (40, 40), 3)
    picture.putpalette([0, 0, 0, 1, 1, 1, 2, 2, 2, 200, 100, 50])
    assert middle(encoded(picture, "PNG")) == (200, 100, 50)


def test_cmyk_without_a_profile() -> None:
    red = Image.new("CMYK", (400, 200), (0, 255, 255, 0))
    jpeg = encoded(red, "JPEG", quality=95)
    assert b"Adobe" in jpeg[:200]  # stored inverted, as Photoshop does
    assert near(middle(jpeg), RED, 3)
    assert near(middle(encoded(red, "TIFF")), RED, 0)


def test_cmyk_goes_through_its_profile() -> None:
    cyan = Image.new("CMYK", (64, 64), (255, 0, 0, 0))
    for image_format, options in (("JPEG", {"quality": 95}), ("TIFF", {})):
        loaded = load_image(encoded(cyan, image_format, icc_profile=grey_cyan_profile(), **options))
        assert loaded.warnings == ()
        assert near(loaded.image.getpixel((32, 32)), (119, 119, 119), 4)  # L* 50; without the profile 0, 255, 255
    assert near(middle(encoded(cyan, "TIFF")), (0, 255, 255), 0)


def test_rgb_goes_through_its_profile() -> None:
    picture = Image.new("RGB", (64, 64), RED)
    assert near(middle(encoded(picture, "PNG", icc_profile=swapped_rgb_profile())), GREEN, 3)
    half_clear = Image.new("RGBA", (64, 64), (255, 0, 0, 128))
    assert near(middle(encoded(half_clear, "PNG", icc_profile=swapped_rgb_profile())), (127, 255, 127), 3)


def test_a_damaged_profile_is_left_out_with_a_warning() -> None:
    red = Image.new("CMYK", (64, 64), (0, 255, 255, 0))
    loaded = load_image(encoded(red, "JPEG", quality=95, icc_profile=b"not a profile" * 20))
    assert near(loaded.image.getpixel((32, 32)), RED, 3)
    assert "colour profile" in loaded.warnings[0]


def test_srgb_profile_changes_nothing() -> None:
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    picture = noise(64, 48)
    assert np.array_equal(load_image(encoded(picture, "PNG", icc_profile=srgb)).image, picture)


def test_animation_gives_its_first_frame_and_a_warning(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (64, 64), colour) for colour in (RED, GREEN, BLUE)]
    for image_format, options in (("GIF", {}), ("PNG", {}), ("WEBP", {"lossless": True}), ("TIFF", {})):
        data = encoded(frames[0], image_format, save_all=True, append_images=frames[1:], **options)
        loaded = load_image(data)
        assert loaded.image.getpixel((32, 32)) == RED, image_format
        assert loaded.warnings and "first frame" in loaded.warnings[0]
    assert load_image(encoded(frames[0], "GIF")).warnings == ()
    assert load_image(encoded(frames[0], "MPO", save_all=True, append_images=frames[1:])).warnings == ()


def test_paths_of_every_kind_give_the_same_picture(tmp_path: Path) -> None:
    path = tmp_path / "größe 1.png"
    data = encoded(noise(40, 32), "PNG")
    path.write_bytes(data)
    for source in (path, str(path), data):
        assert np.array_equal(load_image(source).image, noise(40, 32))


def test_damaged_pictures_are_refused_in_one_sentence(tmp_path: Path) -> None:
    whole = encoded(noise(400, 200), "JPEG")
    cut = tmp_path / "cut.jpg"
    cut.write_bytes(whole[: len(whole) * 6 // 10])
    assert "damaged or cut short" in refusal(cut) and refusal(cut).split(":")[0].endswith("cut.jpg")
    for image_format in ("PNG", "WEBP", "GIF", "TIFF", "AVIF", "BMP"):
        data = encoded(noise(100, 100), image_format)
        refusal(data[: len(data) * 6 // 10])
    page = tmp_path / "page.png"
    page.write_bytes(b"<html>no</html>")
    assert "not a picture" in refusal(page) and "PNG" in refusal(page)
    empty = tmp_path / "empty.png"
    empty.touch()
    assert "is empty" in refusal(empty)
    assert "is empty" in refusal(b"")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "none.png")
    assert "is not a file" in refusal(tmp_path)
    os.mkfifo(tmp_path / "pipe.png")
    assert "is not a file" in refusal(tmp_path / "pipe.png")
    assert "is not a file" in refusal("/dev/zero")
    refusal("a\0b")
    refusal("x" * 5000)
    refusal("data:image/png;base64," + "A" * 100_000)


def test_bytes_are_never_repeated_in_the_error() -> None:
    secret = b"secret-token-from-an-inner-service"
    text = refusal(secret)
    assert "secret" not in text and f"<{len(secret)} bytes>" in text


def test_postscript_is_no_picture() -> None:
    refusal(encoded(Image.new("RGB", (40, 40)), "EPS"))


@pytest.mark.parametrize("size", [(20000, 1), (1, 20000), (4000, 10), (10, 4000), (15, 15), (2100, 100)])
def test_strips_and_specks_are_refused(size: tuple[int, int]) -> None:
    assert f"{size[0]}x{size[1]}" in refusal(encoded(Image.new("RGB", size), "PNG"))


def test_extreme_but_legal_shapes_are_taken() -> None:
    assert load_image(encoded(Image.new("RGB", (320, 16)), "PNG")).image.size == (320, 16)


def test_a_photo_of_24_megapixels_is_taken() -> None:
    photo = encoded(Image.new("RGB", (5712, 4284), GREEN), "JPEG")
    assert load_image(photo).image.size == (5712, 4284)


def test_too_many_bytes_are_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "large.png"
    with path.open("wb") as file:
        file.truncate(40 * 2**30)  # sparse: reading it would take the memory of the machine
    began = time.monotonic()
    assert "32 MiB" in refusal(path)
    assert time.monotonic() - began < 1
    assert "32 MiB" in refusal(bytes(32 * 2**20 + 1))


def test_bombs_are_refused_from_the_header(tmp_path: Path) -> None:
    paths = [tmp_path / f"bomb_{side}.png" for side in (8100, 13000, 20000)]
    for path, side in zip(paths, (8100, 13000, 20000), strict=True):
        path.write_bytes(blank_png(side, side))
    script = (
        "import resource, sys, time\n"
        "from yellowsound.request import RequestError\n"
        "from yellowsound.stages.image import load_image\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for path in sys.argv[1:]:\n"
        "    before, began = peak(), time.monotonic()\n"
        "    try:\n"
        "        load_image(path)\n"
        "    except RequestError as error:\n"
        "        print(time.monotonic() - began, (peak() - before) / 1024, error.problem)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, *map(str, paths)], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    for line in lines:
        seconds, grown_mib, problem = line.split(maxsplit=2)
        assert float(seconds) < 1 and float(grown_mib) < 50
        assert "64 megapixels" in problem
