"""Entry point of a preparer: `python -I -S .../preparer/__main__.py FOLDER...`.

Only the standard library and the given folders can be imported: neither the working directory nor the
environment decides what runs.
"""

import sys

sys.path += sys.argv[1:]

from puna.vision.preparer.process import main

if __name__ == "__main__":
    main()
