"""One setting: what it is called, what it accepts, how its text becomes a value; and slices, which hold the values.

Which settings there are is `shoal.settings`', where their texts come from `shoal.settings_loader`'s. Written without a
validation library: every command reads all settings first, and importing one takes longer than reading them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NoReturn, Self, get_args, get_origin

Default = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class SettingKind:
    """What a setting accepts: its name, the form in words with an example, and how a text is read.

    `read` raises `ValueError` with the end of a sentence.
    """

    name: str
    accepts: str
    read: Callable[[object], Any]


@dataclass(slots=True)
class Setting:
    """One setting of a slice. `planned`: the name is promised, nothing reads it yet. `shown`: the default in words.

    A default that is a function is given the values of the settings before it in its slice.
    """

    env: str
    default: object | Default
    description: str
    secret: bool = False
    planned: bool = False
    shown: str | None = None
    ge: Any = None
    le: Any = None
    min_length: int = 0
    max_length: int | None = None
    kind: SettingKind = None  # type: ignore[assignment]  # given by the slice, from the annotation

    def read(self, value: object) -> Any:
        """The value that a text means; `ValueError` with the end of a sentence if it means none."""
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
    """A setting, for the body of a slice: the annotation says its type and its kind."""
    return Setting(env, default, description, **more)


class SettingsSection:
    """The settings of one room, read only: attributes are values, `settings` says what each one is."""

    settings: ClassVar[dict[str, Setting]]
    given: frozenset[str]  # the names of those that somebody set

    def __init_subclass__(cls) -> None:
        cls.settings = {name: value for name, value in vars(cls).items() if isinstance(value, Setting)}
        for name, one in cls.settings.items():
            one.kind = kind_of(cls.__annotations__[name])

    def __init__(self, **given: Any) -> None:
        """Values by name, as texts or as what they mean; what is not given has its default."""
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
        """The same slice with some values changed."""
        return type(self)(**({name: getattr(self, name) for name in self.given} | changes))


def kind_of(annotation: Any) -> SettingKind:
    """The kind in an annotation; a choice of words is its own."""
    for mark in getattr(annotation, "__metadata__", ()):
        if isinstance(mark, SettingKind):
            return mark
    assert get_origin(annotation) is not None, f"{annotation} names no kind"
    words = [str(word) for word in get_args(annotation)]
    return SettingKind(" / ".join(words), f"{', '.join(words[:-1])} or {words[-1]}", partial(_read_choice, words))


def _read_choice(words: list[str], value: object) -> str:
    word = value.strip().lower() if isinstance(value, str) else value
    if word not in words:
        raise ValueError("is not one of its words")
    return str(word)
