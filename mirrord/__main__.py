"""`python -m mirrord`, and the program `mirrord`."""

import signal


def main() -> None:
    """Run the command line of this process."""
    # Until the command can end in order, Ctrl-C ends it as any other program: nothing has begun.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from mirrord.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
