"""``python -m fastltl`` is the `fastltl` command."""

import sys

from fastltl.cli import main

sys.exit(main())
