"""Fitting text into a width."""

from __future__ import annotations


def align(text: str, width: int, side: str = "left", fill: str = " ") -> str:
    """Text filled up to a width; side is left, right or center. Longer text is returned as it is."""
    room = max(width - len(text), 0)
    if side == "right":
        return fill * room + text
    if side == "center":
        before = room // 2
        return fill * before + text + fill * (room - before)
    return text + fill * room


def cut(text: str, width: int, mark: str = "...") -> str:
    """Text of at most `width` characters; what was cut ends in a mark, if there is room for one."""
    if len(text) <= width:
        return text
    if width <= len(mark):
        return text[:width]
    return text[: width - len(mark)] + mark


def wrap(text: str, width: int, indent: int = 0) -> list[str]:
    """Lines of at most `width` characters, broken at spaces; later lines are indented.

    A word that is longer than a line is broken where the line ends.
    """
    lines: list[str] = []
    line = ""
    for word in text.split():
        room = width if not lines else width - indent
        if line and len(line) + 1 + len(word) <= room:
            line += " " + word
            continue
        if line:
            lines.append(line)
            room = width - indent
        while len(word) > room:
            lines.append(word[:room])
            word = word[room:]
            room = width - indent
        line = word
    if line:
        lines.append(line)
    return lines[:1] + [" " * indent + rest for rest in lines[1:]]
