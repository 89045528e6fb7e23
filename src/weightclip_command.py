"""The entry point of `weightclip`, outside the package: Ctrl-C while it is imported leaves no traceback."""

import signal


def main() -> int:
    """Run the command line; Ctrl-C while it is imported ends the process at once."""
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from weightclip.cli import main

    signal.signal(signal.SIGINT, handler)
    return main()
