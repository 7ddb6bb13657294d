"""Runs `gpuwarden` with a collector that seals segments of this age: python -m bench.chaos.seals SECONDS WORD..."""

import sys
from functools import partial
from unittest.mock import patch

from gpuwarden_cli.main import main
from gpuwarden_collector import stages
from gpuwarden_collector.storage.seal import SealPolicy

if __name__ == "__main__":
    seconds, *words = sys.argv[1:]
    with patch.object(stages, "SealPolicy", partial(SealPolicy, interval_s=float(seconds))):
        sys.exit(main(words))
