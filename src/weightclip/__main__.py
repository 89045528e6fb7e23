"""`python -m weightclip`, the command line."""

import sys

from weightclip.cli import main

sys.exit(main())
