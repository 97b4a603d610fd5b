"""Ballast: takes all of a card but a given number of bytes, so that it is as small as the card to be imitated.

Another process than the measured one, through the driver itself: what is left is then a hard limit, and the driver's
own figures agree with it. Prints the bytes left and holds until its standard input closes.
"""

from __future__ import annotations

import ctypes
import sys

GRAIN_BYTES = 2 << 20


def main(keep_bytes: int) -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    _check("cuInit", cuda.cuInit(0))
    _check("cuDeviceGet", cuda.cuDeviceGet(ctypes.byref(device), 0))
    _check("cuDevicePrimaryCtxRetain", cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    _check("cuCtxSetCurrent", cuda.cuCtxSetCurrent(context))
    size = (_free(cuda) - keep_bytes) // GRAIN_BYTES * GRAIN_BYTES
    if size <= 0:
        sys.exit(f"only {_free(cuda)} bytes of the card are free, {keep_bytes} are to be kept")
    _check("cuMemAlloc", cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)))
    print(_free(cuda), flush=True)
    sys.stdin.read()


def _free(cuda: ctypes.CDLL) -> int:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    _check("cuMemGetInfo", cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    return free.value


def _check(call: str, result: int) -> None:
    if result != 0:
        sys.exit(f"{call} failed with {result}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
