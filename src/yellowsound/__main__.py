"""``python -m yellowsound`` is the command line."""

from yellowsound.cli import main

main()
