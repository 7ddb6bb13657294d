#!/usr/bin/env python3
"""Starts gpuwarden in an image."""

import sys

from gpuwarden_cli.main import main

sys.exit(main())
