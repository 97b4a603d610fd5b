"""What the benchmarks share. Runs from a checkout: without an installed package, ``src`` beside it is used."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

if importlib.util.find_spec("yellowsound") is None:
    sys.path.insert(0, str(ROOT / "src"))
