"""The program of the next version: it supports one more level of `alpacamq.version` than this one."""

import sys

import alpacamq
from alpacamq.cluster import image

# Before the modules that copy them are imported.
alpacamq.__version__ += "+next"
image.CURRENT_LEVEL += 1

if __name__ == "__main__":
    from alpacamq.node.main import main

    sys.exit(main())
