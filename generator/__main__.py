"""`python -m generator`: what the coordinator starts on its own machine."""

import sys

from generator.main import main
from streamdsb.join import inherited_origin

if __name__ == "__main__":
    sys.exit(main(inherited_origin(sys.argv[1:])))
