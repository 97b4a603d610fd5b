"""Touch: uses host memory once, so that a virtual machine that grows on use has grown before anything is timed."""

import sys

from common.caps import touch

if __name__ == "__main__":
    touch(int(sys.argv[1]))
