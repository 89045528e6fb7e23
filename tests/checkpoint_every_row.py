"""The command `weightclip` with a checkpoint after every row, regardless of the machine's speed.

Workers also import this file, because they are spawned.
"""

import math

from weightclip.lab import checkpoint

checkpoint.MAX_FRACTION = math.inf

if __name__ == "__main__":
    from weightclip_command import main

    raise SystemExit(main())
