"""`python -m generator`: what the coordinator starts on its own machine."""

import sys

from streamdsb.hangup import exits_on_hangup

if __name__ == "__main__":
    with exits_on_hangup(int(sys.argv[1])):
        from generator.main import main
        from streamdsb.join import inherited_origin
    sys.exit(main(inherited_origin(sys.argv[1:])))
