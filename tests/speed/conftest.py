"""The asv suites lie beside the package: last on the path, so that what is installed is timed."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
