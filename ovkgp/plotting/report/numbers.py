"""Numbers as a reader wants them: four digits, a true minus sign, and powers of ten that are raised."""

from __future__ import annotations

import math

RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
SMALL, LARGE = 1e-3, 1e6
"""Between these a number is written without a power of ten."""


def show(value: float | None, digits: int = 4) -> str:
    """A number with so many significant digits; a dash where there is none.

    Example:
        >>> from ovkgp.plotting.report.numbers import show
        >>> show(-1234.5678), show(0.5), show(1.5e-7), show(None), show(0.0)
        ('−1235', '0.5', '1.5·10⁻⁷', '–', '0')
    """
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    size = abs(value)
    text = f"{size:.{digits}g}" if SMALL <= size < LARGE else f"{size:.{digits - 1}e}"
    if "e" in text:
        text = _raised(text) if not SMALL <= size < LARGE else f"{float(text):.0f}"
    return f"−{text}" if value < 0 else text


def _raised(text: str) -> str:
    mantissa, exponent = text.split("e")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    power = f"10{str(int(exponent)).translate(RAISED)}"
    return power if mantissa == "1" else f"{mantissa}·{power}"


def percent(share: float | None, digits: int = 0) -> str:
    """A share in per cent; small ones are not rounded to nothing, nor large ones to everything.

    Example:
        >>> from ovkgp.plotting.report.numbers import percent
        >>> percent(0.256), percent(0.001), percent(0.9999), percent(0.0)
        ('26 %', '< 1 %', '> 99 %', '0 %')
    """
    if share is None or math.isnan(share):
        return "–"
    least = 10.0**-digits
    if 0 < 100 * share < least / 2:
        return f"< {least:g} %"
    if 100 - least / 2 < 100 * share < 100:
        return f"> {100 - least:g} %"
    return f"{100 * share:.{digits}f} %".replace("-", "−")


def listed(names, most: int = 5) -> str:
    """Names in quotes with commas and "and"; the first ones of many.

    Example:
        >>> from ovkgp.plotting.report.numbers import listed
        >>> listed(["u"]), listed(["u", "v", "w"]), listed("abcdefgh", most=2)
        ("'u'", "'u', 'v' and 'w'", "'a', 'b' and 6 more")
    """
    names = [f"'{name}'" for name in names]
    return joined(names) if len(names) <= most else f"{', '.join(names[:most])} and {len(names) - most} more"


def joined(parts) -> str:
    """Parts of a sentence with commas, and "and" before the last.

    Example:
        >>> from ovkgp.plotting.report.numbers import joined
        >>> joined(["rain"]), joined(["wind", "rain", "sun"])
        ('rain', 'wind, rain and sun')
    """
    *first, last = map(str, parts)
    return f"{', '.join(first)} and {last}" if first else last
