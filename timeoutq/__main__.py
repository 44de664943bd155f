"""`python -m timeoutq` is the command `timeoutq`."""

from timeoutq.cli import main

if __name__ == "__main__":
    main()
