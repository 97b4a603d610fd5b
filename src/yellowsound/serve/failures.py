"""From an exception in the worker to a failure code, a sentence without paths, and whether the worker is spent."""

from __future__ import annotations

import errno
import re

from yellowsound.events import Cancelled
from yellowsound.request import RequestError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FOLDERS = re.compile(r"(?<![\w.])(?:/[^\s/:'\"]+)+/")
_OUT_OF_MEMORY = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "not enough memory", "can't allocate memory")
MAX_MESSAGE = 500


def classify(error: BaseException) -> tuple[str, str, bool]:
    """(code, message, fatal). Out of memory and CUDA faults are fatal: only a new process is surely clean."""
    if isinstance(error, Cancelled):
        return "cancelled", "The job was cancelled.", False
    if isinstance(error, RequestError):
        return "invalid_input_late", plain_reason(error), False
    if is_out_of_memory(error):
        return "out_of_memory", f"The worker ran out of memory: {plain_reason(error)}", True
    if isinstance(error, OSError) and error.errno in _FULL:
        return "storage_error", "The disk is full; the clip could not be written.", False
    if isinstance(error, OSError):
        return "storage_error", f"A file could not be read or written: {plain_reason(error)}", False
    fatal = not isinstance(error, Exception) or "CUDA error" in str(error)
    return "internal_error", plain_reason(error), fatal


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory of the host or the card ran out, by type or by the words libraries use."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY)


def plain_reason(error: BaseException) -> str:
    """The first lines of an exception for a person: no traceback, folders cut from file names."""
    text = " ".join(str(error).split()) or type(error).__name__
    if not isinstance(error, (RequestError, OSError)) and type(error).__module__ == "builtins":
        text = f"{type(error).__name__}: {text}"
    return _FOLDERS.sub("", text)[:MAX_MESSAGE]
