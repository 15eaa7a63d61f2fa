"""`python -m puna`: the same as `puna`."""

import sys

from puna.cli import main

if __name__ == "__main__":
    sys.exit(main())
