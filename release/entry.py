"""Runs a bundle: `sudo python3 gpuwarden-PART-VERSION.pyz install`. Python of any age must be able to read it."""

import sys

if sys.version_info < (3, 11):
    sys.exit(
        "gpuwarden needs Python 3.11 or newer and this is %d.%d: run this file with a newer python3, or"
        " with sh if it is a .run" % sys.version_info[:2]
    )

from gpuwarden_installer.command import main

sys.exit(main())
