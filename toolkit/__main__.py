"""``toolkit`` and ``python -m toolkit``: the program. It handles signals before slow imports."""

# Built in, so it reads no file; Python has imported it before.
from _signal import SIG_DFL, SIGINT, default_int_handler, getsignal, raise_signal, signal  # type: ignore[import-not-found]

# Until our own handler stands, Ctrl-C ends the program as SIGTERM does, without a traceback.
try:
    if getsignal(SIGINT) is default_int_handler:
        signal(SIGINT, SIG_DFL)
except KeyboardInterrupt:  # the signal arrived just before
    signal(SIGINT, SIG_DFL)
    raise_signal(SIGINT)

import sys

# Python searches modules in the current folder first, where it would run a random.py of the user. Python has already
# imported the modules above and in this block, so they do not come from that folder.
if __name__ == "__main__":
    import os

    source = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if sys.path[0] == os.getcwd() != source:
        sys.path[0] = source


def main() -> None:
    """Run the command line and exit."""
    from toolkit.machine import interruption

    try:
        interruption.begin_handling()
        from toolkit import cli
    except KeyboardInterrupt:
        sys.stderr.write(interruption.interruption_message() + "\n")
        interruption.end_process(interruption.exit_status())
    cli.main()


if __name__ == "__main__":
    main()
