"""The entry point of `weightclip`: outside the package, whose import brings PyTorch and takes a second or two."""

import signal


def main() -> int:
    """Run the command line; Ctrl-C while PyTorch is imported ends it at once, without a traceback."""
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from weightclip.cli import main

    signal.signal(signal.SIGINT, handler)
    return main()
