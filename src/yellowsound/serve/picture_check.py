"""Run as a process: decode the picture on stdin within limits and print what is wrong with it, as JSON.

Apart from the server, so that a hostile file can neither fill its memory nor stop its clock.
"""

from __future__ import annotations

import json
import resource
import sys

MEMORY_BYTES = 3 << 30  # decoding 64 megapixels takes up to four bytes each, twice
CPU_SECONDS = 20


def main() -> None:
    """``python -m yellowsound.serve.picture_check PIXELS < picture``."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    print(json.dumps(report(sys.stdin.buffer.read(), int(sys.argv[1]))))


def report(data: bytes, max_pixels: int) -> dict[str, object]:
    """``{"warnings": […]}`` for a usable picture, ``{"problem": text}`` for another."""
    from yellowsound.request import RequestError
    from yellowsound.stages.image import load_image

    try:
        picture = load_image(data)
    except RequestError as error:
        return {"problem": error.problem}
    except MemoryError:
        return {"problem": "takes too much memory to open"}
    width, height = picture.image.size
    if width * height > max_pixels:
        return {"problem": f"has {width * height} pixels, at most {max_pixels} are taken"}
    return {"warnings": list(picture.warnings)}


if __name__ == "__main__":
    main()
