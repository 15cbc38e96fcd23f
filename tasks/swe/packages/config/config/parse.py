"""Text to sections of values."""

from __future__ import annotations

Value = bool | int | float | str | list["Value"]
Section = dict[str, Value]


class ConfigError(ValueError):
    """Raised for text that is no configuration; names the line."""


def parse(text: str, default_section: str = "main") -> dict[str, Section]:
    """Sections of key = value. A line that is indented goes on where the last one ended.

    Everything after " #" is a comment. Keys before the first [section] belong to the default one.
    """
    sections: dict[str, Section] = {}
    current = default_section
    for number, line in _logical_lines(text):
        if line.startswith("["):
            if not line.endswith("]") or len(line) < 3:
                raise ConfigError(f"line {number}: a section is written [name]")
            current = line[1:-1].strip()
            sections.setdefault(current, {})
            continue
        key, sign, value = line.partition("=")
        key = key.strip()
        if not sign or not key:
            raise ConfigError(f"line {number}: expected key = value, found {line!r}")
        section = sections.setdefault(current, {})
        if key in section:
            raise ConfigError(f"line {number}: {key!r} is set twice in [{current}]")
        section[key] = parse_value(value.strip())
    return sections


def parse_value(text: str) -> Value:
    """true, false, whole numbers, numbers, "quoted text", [lists, of, values], or the text itself."""
    if text.startswith("[") and text.endswith("]"):
        inner = text[1:-1].strip()
        return [parse_value(part.strip()) for part in _split(inner)] if inner else []
    if len(text) >= 2 and text[0] == text[-1] == '"':
        return text[1:-1].replace('\\"', '"')
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """(number of the first line, text) with comments and blank lines left out and continuations joined."""
    lines: list[tuple[int, str]] = []
    for number, raw in enumerate(text.split("\n"), start=1):
        line = "" if raw.lstrip().startswith("#") else raw.partition(" #")[0].rstrip()
        if not line:
            continue
        if line[0] in " \t" and lines:
            first, before = lines[-1]
            lines[-1] = (first, before + " " + line.strip())
        else:
            lines.append((number, line.strip()))
    return lines


def _split(inner: str) -> list[str]:
    """Parts between commas that are neither in quotes nor in brackets."""
    parts, depth, quoted, start = [], 0, False, 0
    for i, sign in enumerate(inner):
        if sign == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif sign == "[":
            depth += 1
        elif sign == "]":
            depth -= 1
        elif sign == "," and depth == 0:
            parts.append(inner[start:i])
            start = i + 1
    parts.append(inner[start:])
    return parts
