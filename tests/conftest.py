"""What all tests share."""

import os

from hypothesis import settings

# Timing is measured in bench/, never asserted: a busy machine must not fail a property. Examples are
# new ones each time for whoever works here, and the same ones where a change is judged.
settings.register_profile("gpuwarden", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("gpuwarden")
