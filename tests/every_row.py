"""The command `weightclip` with a checkpoint after every row, whatever the speed of the machine.

Workers import this file too, because they are spawned.
"""

import math

from weightclip.lab import checkpoint

checkpoint.MAX_FRACTION = math.inf

if __name__ == "__main__":
    from weightclip_command import main

    raise SystemExit(main())
