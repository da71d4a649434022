"""The program of the next version: it supports one more level of `alpacamq.version` than this one."""

import sys

from alpacamq.cluster import image
from alpacamq.cluster.brokers import FeatureRange
from alpacamq.model import version

# Before the modules that copy them are imported.
version.VERSION += "+next"
image.CURRENT_LEVEL += 1
image.FEATURES = {image.VERSION_FEATURE: FeatureRange(1, image.CURRENT_LEVEL)}

if __name__ == "__main__":
    from alpacamq.node.main import main

    sys.exit(main())
