"""Entry point of a decoder: `python -I -S .../decoder/__main__.py FOLDER...`.

Only the standard library and the given folders can be imported: neither the working directory nor the
environment decides what runs.
"""

import sys

sys.path += sys.argv[1:]

from puna.audio.decoder.process import main

if __name__ == "__main__":
    main()
