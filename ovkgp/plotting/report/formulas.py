"""Formulas without a library: a line with `_` and `^` becomes HTML with lowered and raised parts and slanted letters.

`K(x, z) = Σ_{q=1}^R k_q(x, z) B_q` is read as in TeX, but all symbols are Unicode. Bold capitals and words of two letters or
more stay upright; single Latin and Greek letters are variables.
"""

from __future__ import annotations

import re

from markupsafe import Markup, escape

TOKENS = re.compile(r"[_^](?:\{[^{}]*\}|[^\s{}])|[^\W\d_]+|.", re.DOTALL)
"""A lowered or raised part, a word, or any other character."""
WIDE = "\N{EM SPACE}"
"""What three spaces are: browsers would make one of them."""


def formula_html(text: str) -> Markup:
    """A formula as HTML.

    Example:
        >>> from ovkgp.plotting.report.formulas import formula_html
        >>> str(formula_html("s_a^2 < exp(x)"))
        '<var>s</var><sub><var>a</var></sub><sup>2</sup> &lt; exp(<var>x</var>)'
    """
    return Markup("").join(_token(token) for token in TOKENS.findall(text.replace("   ", WIDE)))


def _token(token: str) -> Markup:
    if token[0] in "_^" and len(token) > 1:
        tag = "sub" if token[0] == "_" else "sup"
        inside = token[2:-1] if token[1] == "{" else token[1:]
        # two letters are two indices, and no word
        html = Markup("").join(map(_token, inside)) if len(inside) == 2 else formula_html(inside)
        return Markup(f"<{tag}>") + html + Markup(f"</{tag}>")
    if len(token) == 1 and token.isalpha() and token not in "ΣΠ":
        return Markup("<var>") + escape(token) + Markup("</var>")
    return escape(token)
