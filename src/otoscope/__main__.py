"""``python -m otoscope``."""

import sys

from otoscope.cli import main

sys.exit(main())
