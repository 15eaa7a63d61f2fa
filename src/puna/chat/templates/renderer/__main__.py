"""`python -I -S .../renderer/__main__.py FOLDER...`: how a renderer is started.

Nothing but the standard library and what lies in the given folders can be imported: neither the working
directory nor the environment decides what runs.
"""

import sys

sys.path += sys.argv[1:]

from puna.chat.templates.renderer.process import main

if __name__ == "__main__":
    main()
