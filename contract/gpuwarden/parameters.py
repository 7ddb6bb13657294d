"""Parses numbers of requests within bounds; `clock.instant_of` parses instants, `durations.seconds_of` durations."""


def whole_number_of(text: str, least: int, most: int) -> int:
    """The whole number that a text of digits is.

    Raises ValueError; its message continues a sentence that begins with the parameter's name.
    """
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(most))
    if not is_number or not least <= int(text) <= most:
        raise ValueError(f"must be a whole number from {least} to {most}")
    return int(text)
