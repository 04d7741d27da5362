"""Formatting of numbers with four digits and raised powers of ten, of percentages, and of lists of names."""

from __future__ import annotations

import math

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
MIN_DECIMAL, MAX_DECIMAL = 1e-3, 1e6  # numbers in this range are written without a power of ten


def format_number(value: float | None, digits: int = 4) -> str:
    """Format a number with significant `digits`, such as −1235, 0.5 or 1.5·10⁻⁷; None and NaN become a dash."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    size = abs(value)
    is_decimal = MIN_DECIMAL <= size < MAX_DECIMAL
    text = f"{size:.{digits}g}" if is_decimal else f"{size:.{digits - 1}e}"
    if "e" in text:
        text = f"{float(text):.0f}" if is_decimal else _format_power(text)
    return f"−{text}" if value < 0 else text


def _format_power(text: str) -> str:
    mantissa, exponent = text.split("e")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    power = f"10{str(int(exponent)).translate(SUPERSCRIPTS)}"
    return power if mantissa == "1" else f"{mantissa}·{power}"


def format_percent(fraction: float | None, digits: int = 0) -> str:
    """Format a fraction as a percentage; values close to 0 and 1 become "< 1 %" and "> 99 %"."""
    if fraction is None or math.isnan(fraction):
        return "–"
    step = 10.0**-digits
    if 0 < 100 * fraction < step / 2:
        return f"< {step:g} %"
    if 100 - step / 2 < 100 * fraction < 100:
        return f"> {100 - step:g} %"
    return f"{100 * fraction:.{digits}f} %".replace("-", "−")


def quote_names(names, max_names: int = 5) -> str:
    """Join quoted names, such as "'u', 'v' and 'w'", or "'a', 'b' and 6 more" if there are many."""
    names = [f"'{name}'" for name in names]
    if len(names) <= max_names:
        return join_names(names)
    return f"{', '.join(names[:max_names])} and {len(names) - max_names} more"


def join_names(names) -> str:
    """Join names with commas, and "and" before the last."""
    *first, last = map(str, names)
    return f"{', '.join(first)} and {last}" if first else last
