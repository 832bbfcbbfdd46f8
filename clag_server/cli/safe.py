r"""Text that others wrote, made harmless for a terminal.

A memory may hold escape sequences (which could retitle a window or hide lines), text direction overrides (which
make one thing read as another) and rich markup. Control characters are shown as escapes such as `\x1b`; markup is
never parsed, because everything is printed as `rich.text.Text` on a console with markup off.
"""

from __future__ import annotations

import unicodedata

__all__ = ["one_line", "shorten", "visible"]

_DECEPTIVE = frozenset(
    (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0x2029, 0xFEFF, *range(0xE0000, 0xE0080))
)
"""Direction overrides, line separators and invisible tag characters. Joiners stay: scripts and emoji need them."""

_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def is_unsafe(character: str) -> bool:
    """Whether a terminal would act on the character instead of showing it."""
    return unicodedata.category(character) in ("Cc", "Cs") or ord(character) in _DECEPTIVE


def visible(text: str, *, keep: str = "") -> str:
    """Show each unsafe character as an escape.

    Args:
        text: Any text.
        keep: Characters that stay as they are, such as a newline.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in keep or not is_unsafe(c) else _NAMED.get(c) or _escape(c) for c in text)


def one_line(text: str) -> str:
    """Show a text on one line: runs of white space become a space, the rest is escaped."""
    return visible(" ".join(text.split()))


def shorten(text: str, width: int) -> str:
    """Show a text on one line of at most `width` characters, cut with an ellipsis."""
    line = one_line(text)
    return line if len(line) <= width else line[: max(width - 1, 0)].rstrip() + "…"


def _escape(character: str) -> str:
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
