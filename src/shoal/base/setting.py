"""A setting (name, accepted values, parser), and sections, which hold the values of settings.

`settings` defines the settings, `settings_loader` reads their sources. No validation library is used: every command
reads all settings first, and importing such a library takes longer than reading them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NoReturn, Self, get_args, get_origin

Default = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class SettingKind:
    """A kind of setting: its name, a description of valid values with an example, and the parser.

    `read` raises `ValueError` with the end of a sentence.
    """

    name: str
    accepts: str
    read: Callable[[object], Any]


@dataclass(slots=True)
class Setting:
    """One setting of a section. `shown`: the default in words.

    A default that is a function receives the values of the settings before it in its section.
    """

    env: str
    default: object | Default
    description: str
    secret: bool = False
    shown: str | None = None
    ge: Any = None
    le: Any = None
    min_length: int = 0
    max_length: int | None = None
    kind: SettingKind = None  # type: ignore[assignment]  # set by the section, from the annotation

    def read(self, value: object) -> Any:
        """Parse a value; raise `ValueError` with the end of a sentence if it is invalid."""
        found = self.kind.read(value)
        if self.max_length is not None and len(found) > self.max_length:
            raise ValueError("is too long")
        if self.min_length and len(found) < self.min_length:
            raise ValueError("is too short")
        if (self.ge is not None and found < self.ge) or (self.le is not None and found > self.le):
            raise ValueError("is out of range")
        return found

    def default_after(self, earlier: Mapping[str, Any]) -> Any:
        return self.read(self.default(earlier) if callable(self.default) else self.default)


def setting(env: str, default: object | Default, description: str, **more: Any) -> Any:
    """Define a setting in the body of a section; the annotation gives its type and its kind."""
    return Setting(env, default, description, **more)


class SettingsSection:
    """The settings of one package, read only: attributes are values, `settings` holds the definitions."""

    settings: ClassVar[dict[str, Setting]]
    given: frozenset[str]  # the names of the settings that were set explicitly

    def __init_subclass__(cls) -> None:
        cls.settings = {name: value for name, value in vars(cls).items() if isinstance(value, Setting)}
        for name, one in cls.settings.items():
            one.kind = kind_of(cls.__annotations__[name])

    def __init__(self, **given: Any) -> None:
        """Take values by name, as text or already parsed; all other settings get their defaults."""
        unknown = given.keys() - self.settings.keys()
        if unknown:
            raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(unknown))}")
        values: dict[str, Any] = {}
        for name, one in self.settings.items():
            values[name] = one.read(given[name]) if name in given else one.default_after(values)
        self.__dict__.update(values, given=frozenset(given))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is read only")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        shown = (f"{name}={vars(self)[name]!r}" for name, one in self.settings.items() if not one.secret)
        return f"{type(self).__name__}({', '.join(shown)})"

    def but(self, **changes: Any) -> Self:
        """Return this section with some values changed."""
        return type(self)(**({name: getattr(self, name) for name in self.given} | changes))


def kind_of(annotation: Any) -> SettingKind:
    """Return the kind in an annotation; a `Literal` becomes a kind of its own."""
    for mark in getattr(annotation, "__metadata__", ()):
        if isinstance(mark, SettingKind):
            return mark
    assert get_origin(annotation) is not None, f"{annotation} has no setting kind"
    words = [str(word) for word in get_args(annotation)]
    return SettingKind(" / ".join(words), f"{', '.join(words[:-1])} or {words[-1]}", partial(_read_choice, words))


def _read_choice(words: list[str], value: object) -> str:
    word = value.strip().lower() if isinstance(value, str) else value
    if word not in words:
        raise ValueError("is not an allowed value")
    return str(word)
