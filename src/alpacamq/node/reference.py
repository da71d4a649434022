"""Texts generated from the table of options: a commented configuration file and the guide's tables."""

import textwrap

from alpacamq.model.topics import SETTINGS, ConfigKind, Setting

from .config import OPTIONS, SECTIONS
from .options import Option

_PREFACE = """\
# Configuration of AlpacaMQ, with every option at its default.
# ALPACAMQ_<SECTION>_<KEY> in the environment overrides this file; the command line overrides both.
"""
_COMMENT_WIDTH = 98
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def example() -> str:
    """Return a complete TOML file with all options at their defaults and their descriptions."""
    parts = [_PREFACE]
    for section, struct in SECTIONS.items():
        summary = (struct.__doc__ or "").partition(": ")[2]
        parts.append(f"# {summary[:1].upper()}{summary[1:]}\n[{section}]")
        parts += [f"{_comment(option.doc)}\n{_assignment(option)}" for option in _of(section)]
        if section == "topics":
            parts.append(_topic_defaults())
    return "\n".join(f"{part.rstrip()}\n" for part in parts)


def options_page() -> str:
    """Return the tables of docs/guide/configuration.md."""
    parts = []
    for section, struct in SECTIONS.items():
        summary = (struct.__doc__ or "").partition(": ")[2]
        rows = [
            f"| `{option.key.partition('.')[2]}` | {_default_cell(option)} | "
            f"{option.expected} | {option.doc} |"
            for option in _of(section)
        ]
        parts.append(
            f"### [{section}]\n\n{summary[:1].upper()}{summary[1:]}\n\n"
            "| key | default | value | meaning |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
        )
    return "\n".join(parts)


def topic_settings_page() -> str:
    """Return the table of docs/guide/topics-and-settings.md."""
    rows = [
        f"| `{name}` | {_setting_cell(setting)} | {_bounds(setting)} | {setting.doc} |"
        for name, setting in SETTINGS.items()
    ]
    return "| setting | default | values | meaning |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"


def _of(section: str) -> list[Option]:
    return [
        option
        for key, option in OPTIONS.items()
        if isinstance(option, Option) and key.partition(".")[0] == section
    ]


def _comment(text: str) -> str:
    return textwrap.fill(text, _COMMENT_WIDTH, initial_indent="# ", subsequent_indent="# ")


def _assignment(option: Option) -> str:
    name = option.key.rpartition(".")[2]
    text = option.default_text
    if option.type in {int, bool}:
        return f"{name} = {text}{_size_note(option, '  # ')}"
    if option.is_list:
        return f"{name} = {list(option.default)}"
    return f'{name} = "{text}"'


def _topic_defaults() -> str:
    settings = "\n".join(
        f'# "{name}" = "{setting.text(setting.default)}"' for name, setting in SETTINGS.items()
    )
    return f"# Settings of all topics that do not set them, by Kafka's names.\n[topics.defaults]\n{settings}"


def _default_cell(option: Option) -> str:
    return (f"`{option.default_text}`" if option.default_text else "empty") + _size_note(option, ", ")


def _size_note(option: Option, separator: str) -> str:
    if option.key.endswith("_bytes"):
        for size, unit in _UNITS:
            if option.default >= size and option.default % size == 0:
                return f"{separator}{option.default // size} {unit}"
    return ""


def _setting_cell(setting: Setting) -> str:
    text = setting.text(setting.default)
    return f"`{text}`" if text else "empty"


def _bounds(setting: Setting) -> str:
    if setting.choices:
        return ", ".join(f"`{choice}`" for choice in setting.choices)
    if setting.kind is ConfigKind.BOOLEAN:
        return "true or false"
    return "text" if setting.minimum is None else f"{setting.minimum} to {setting.maximum}"
