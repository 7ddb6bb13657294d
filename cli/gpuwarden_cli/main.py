"""Entry point of the `gpuwarden` command."""


def main() -> int:
    """Run the command line; the result is the exit code."""
    return 2
