"""Make `benchmarks` importable, last on the path so that the installed fastltl is timed."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
