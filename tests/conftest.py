"""What all tests share."""

from hypothesis import settings

# Timing is measured in bench/, never asserted: a busy machine must not fail a property.
settings.register_profile("gpuwarden", deadline=None)
settings.load_profile("gpuwarden")
