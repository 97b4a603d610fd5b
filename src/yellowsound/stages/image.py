"""The picture a clip starts from: any file people have, as the RGB image they see, or one sentence why not.

Knows file formats, colour and orientation. Knows nothing of the clip's size: the pipeline covers and crops.
What cannot be used is refused from its header, before a pixel is decoded.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, ImageCms, ImageOps, UnidentifiedImageError

from yellowsound.request import RequestError

MAX_BYTES = 32 * 2**20
MAX_PIXELS = 64_000_000
MIN_SIDE = 16
MAX_ASPECT = 20
SHOWN_CHARACTERS = 60
# Only formats that are pictures and decode in-process: Pillow's EPS, for one, would start Ghostscript.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "AVIF", "JPEG2000")
FORMAT_NAMES = "PNG, JPEG, WebP, AVIF, GIF, BMP, TIFF, PPM or JPEG 2000"
MODES = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr")
WHITE = (255, 255, 255)


@dataclass(frozen=True, slots=True)
class ImageInput:
    """A picture ready for the pipeline: PIL RGB, upright, without alpha; and what was done that one may not expect."""

    image: Image.Image
    warnings: tuple[str, ...] = ()


def load_image(source: str | Path | bytes) -> ImageInput:
    """Read a path or the bytes of an encoded picture.

    Orientation by EXIF; transparency over white; CMYK and RGB through their embedded profile to sRGB; 16 bits scaled
    to 8; the first frame of an animation, with a warning. At most 32 MiB, 64 megapixels, sides from 16 px, 20:1.
    Raises RequestError("image", ...): missing, not a picture, damaged or outside these limits.
    """
    shown = _shown(source)
    data = source if isinstance(source, bytes) else _read(Path(source), shown)
    if not data:
        raise RequestError("image", shown, "is empty")
    if len(data) > MAX_BYTES:
        raise RequestError("image", shown, f"has {len(data)} bytes, at most {MAX_BYTES} (32 MiB) are taken")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's remarks on odd headers; its limit on pixels is ours, lower
        image = _open(data, shown)
        _check_geometry(image, shown)
        return _decode(image, shown)


def _shown(source: str | Path | bytes) -> str:
    """How an error names the source: never by its content, and a long path by its end."""
    if isinstance(source, bytes):
        return f"<{len(source)} bytes>"
    text = str(source)
    return text if len(text) <= SHOWN_CHARACTERS else "..." + text[3 - SHOWN_CHARACTERS :]


def _read(path: Path, shown: str) -> bytes:
    try:
        if path.exists() and not path.is_file():  # a pipe or device would be waited for
            raise RequestError("image", shown, "is not a file")
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise RequestError("image", shown, f"has {size} bytes, at most {MAX_BYTES} (32 MiB) are taken")
        return path.read_bytes()
    except FileNotFoundError as error:
        raise RequestError("image", shown, "there is no such file") from error
    except OSError as error:
        raise RequestError("image", shown, f"cannot be read: {(error.strerror or 'unknown reason').lower()}") from error
    except RequestError:
        raise
    except ValueError as error:  # NUL in the name
        raise RequestError("image", repr(shown), "is not a file name") from error


def _open(data: bytes, shown: str) -> Image.Image:
    try:
        return Image.open(io.BytesIO(data), formats=FORMATS)
    except Image.DecompressionBombError as error:
        raise RequestError("image", shown, f"has too many pixels: {_limit()}") from error
    except UnidentifiedImageError as error:
        raise RequestError("image", shown, f"is not a picture in a known format: {FORMAT_NAMES}") from error
    except Exception as error:  # decoders raise anything on a damaged header
        raise RequestError("image", shown, "its header is damaged") from error


def _limit() -> str:
    return f"at most {MAX_PIXELS // 1_000_000} megapixels are taken"


def _check_geometry(image: Image.Image, shown: str) -> None:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise RequestError("image", shown, f"is {width}x{height}: {_limit()}")
    if min(width, height) < MIN_SIDE:
        raise RequestError("image", shown, f"is {width}x{height}: both sides must have at least {MIN_SIDE} pixels")
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise RequestError("image", shown, f"is {width}x{height}: sides must not differ more than {MAX_ASPECT}:1")


def _decode(image: Image.Image, shown: str) -> ImageInput:
    """The pixels: every fault of the file becomes one sentence, every choice made for the user a warning."""
    notes: list[str] = []
    try:
        if _is_animated(image):
            notes.append("image is animated or has several pages: its first frame is used")
            image.seek(0)
        image.load()
        image = _upright(image, notes)
        return ImageInput(_to_rgb(image, shown, notes), tuple(notes))
    except RequestError:
        raise
    except MemoryError as error:
        raise RequestError("image", shown, "there is not enough memory to decode it") from error
    except Exception as error:  # decoders raise OSError, SyntaxError, struct.error, ... on damaged data
        raise RequestError("image", shown, "is damaged or cut short") from error


def _is_animated(image: Image.Image) -> bool:
    """Whether there is more than one picture to choose from; the extra views in a camera's MPO are not."""
    return image.format != "MPO" and bool(getattr(image, "is_animated", False))


def _upright(image: Image.Image, notes: list[str]) -> Image.Image:
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # damaged EXIF does not spoil the pixels
        notes.append("image has damaged EXIF data: it is taken as it lies")
        return image
    return ImageOps.exif_transpose(image) if orientation in range(2, 9) else image


def _to_rgb(image: Image.Image, shown: str, notes: list[str]) -> Image.Image:
    if image.mode == "F" or image.mode.startswith("I"):
        return _deep_grey(image, shown)
    if image.mode not in MODES:
        raise RequestError("image", shown, f"has the colour mode {image.mode}: save it as sRGB, grey or CMYK")
    if not image.has_transparency_data:
        return _profiled(image, image.info.get("icc_profile"), notes)
    rgba = image.convert("RGBA")
    colours = _profiled(rgba.convert("RGB"), image.info.get("icc_profile"), notes)
    return _over_white(colours, rgba.getchannel("A"))


def _over_white(colours: Image.Image, alpha: Image.Image) -> Image.Image:
    background = Image.new("RGB", colours.size, WHITE)
    background.paste(colours, mask=alpha)
    return background


def _deep_grey(image: Image.Image, shown: str) -> Image.Image:
    """Grey of 16 or 32 bits (0 to 65535) or float (0 to 1) as 8-bit RGB, rounded to nearest."""
    values, top = np.asarray(image), 1.0 if image.mode == "F" else 65535.0
    if not np.isfinite(values).all() or values.min() < 0 or values.max() > top:
        raise RequestError("image", shown, f"has grey values outside 0 to {top:g}: save it with 8 or 16 bits")
    if image.mode == "F":
        levels = np.floor(values * np.float32(255) + np.float32(0.5)).astype(np.uint8)
    else:
        levels = np.floor(np.arange(65536) * (255 / 65535) + 0.5).astype(np.uint8)[values]
    grey = Image.fromarray(levels).convert("RGB")
    clear = image.info.get("transparency")
    if not isinstance(clear, int):
        return grey
    return _over_white(grey, Image.fromarray(np.where(values == clear, 0, 255).astype(np.uint8)))


def _profiled(image: Image.Image, profile: bytes | None, notes: list[str]) -> Image.Image:
    """RGB or CMYK to sRGB by the embedded profile; other modes, and without one, by plain conversion."""
    if not profile or image.mode not in ("RGB", "CMYK"):
        return image.convert("RGB")
    try:
        embedded = ImageCms.getOpenProfile(io.BytesIO(profile))
        if "sRGB" in ImageCms.getProfileDescription(embedded):
            return image.convert("RGB")
        converted = ImageCms.profileToProfile(image, embedded, ImageCms.createProfile("sRGB"), outputMode="RGB")
    except (ImageCms.PyCMSError, OSError, ValueError):
        notes.append("image has a colour profile that cannot be used: colours are taken without it")
        return image.convert("RGB")
    return image.convert("RGB") if converted is None else converted
