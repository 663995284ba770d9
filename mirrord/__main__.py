"""`python -m mirrord`."""

from mirrord.cli.main import main

if __name__ == "__main__":
    main()
