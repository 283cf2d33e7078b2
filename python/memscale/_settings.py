"""Classes of settings whose fields are declared in one place.

A field is declared once, by :func:`setting`: its default, its allowed values, what it means, what it contradicts,
and whether this version has what it asks for. The constructor, its signature, the messages, the docstring and
docs/CONFIG.md are made from that. Values are checked when an object is made, and it never changes afterwards.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import inspect
import math
import os
import textwrap
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, NoReturn, TypeVar

from .errors import MemScaleError

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Callable[[Any], Any]:
        """Tells type checkers that subclasses are dataclasses; in ``typing`` only from Python 3.11 on."""
        return lambda cls: cls


T = TypeVar("T")
Self = TypeVar("Self", bound="Settings")


# How a field is declared


@dataclasses.dataclass(frozen=True)
class Check(Generic[T]):
    """The values that a field of type T takes: in words that follow "it must be", and as a test."""

    allowed: str
    accepts: Callable[[Any], bool]


BOOLEAN: Check[bool] = Check("True or False", lambda value: isinstance(value, bool))
PATH: Check[str | os.PathLike[str]] = Check(
    "a path", lambda value: isinstance(value, (str, os.PathLike)) and bool(str(value))
)


def number(low: float, high: float = math.inf, *, low_open: bool = False) -> Check[float]:
    def accepts(value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            return False
        return low <= value <= high and not (low_open and value == low)

    upper = f" and at most {high:g}" if high < math.inf else ""
    return Check(f"a number {'above' if low_open else 'of at least'} {low:g}{upper}", accepts)


def integer(low: int, high: int) -> Check[int]:
    def accepts(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high

    return Check(f"a whole number from {low} to {high}", accepts)


def one_of(literal: Any) -> Check[Any]:
    names = typing.get_args(literal)
    return Check(
        "one of " + ", ".join(repr(name) for name in names), lambda value: isinstance(value, str) and value in names
    )


def instance(kind: type[T]) -> Check[T]:
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    return Check(f"{article} {kind.__name__}", lambda value: isinstance(value, kind))


def or_none(check: Check[T]) -> Check[T | None]:
    return Check(check.allowed + " or None", lambda value: value is None or check.accepts(value))


class Needs(NamedTuple):
    """A contradiction: while the field is given and on (or off, if ``when`` is False), ``other`` must be on."""

    other: str
    when: bool = True
    because: str = ""


_OFF = (None, False)  # the values of a field that asks for nothing


class _Declaration(NamedTuple):
    """What a dataclass does not know of a field; the arguments of :func:`setting`."""

    doc: str
    check: Check[Any]
    needs: Needs | None
    missing: str | None
    harmless: tuple[Any, ...]
    convert: Callable[[Any], Any] | None


def setting(
    doc: str,
    *,
    default: T,
    check: Check[T],
    kw_only: bool = True,
    needs: str | Needs | None = None,
    missing: str | None = None,
    harmless: tuple[Any, ...] = _OFF,
    convert: Callable[[Any], Any] | None = None,
) -> T:
    """Declare a field.

    Args:
        doc: what the field means, in one or more sentences.
        default: its value where neither the caller nor the mode sets it.
        check: the values that it takes.
        kw_only: it is given by keyword only.
        needs: the field that must be on while this one is set, or a :class:`Needs`.
        missing: what the field asks for, if no engine of this version does that: see :func:`check_available`.
        harmless: the values that do not ask for it.
        convert: makes a value of the field's type from others that the constructor takes; annotated with them.
    """
    needed = Needs(needs) if isinstance(needs, str) else needs
    declaration = _Declaration(doc, check, needed, missing, harmless, convert)
    return dataclasses.field(default=default, kw_only=kw_only, metadata={"declaration": declaration})


def _declared(field: dataclasses.Field[Any]) -> _Declaration:
    declaration: _Declaration = field.metadata["declaration"]
    return declaration


def fields_of(settings: type[Settings] | Settings) -> tuple[dataclasses.Field[Any], ...]:
    """The fields of a class of settings, in order."""
    return dataclasses.fields(settings)  # type: ignore[arg-type]  # subclasses are made dataclasses at run time


# What classes of settings have in common


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(setting,))
class Settings:
    """The base of classes of settings, whose subclasses only declare fields.

    A subclass becomes a frozen dataclass. Type checkers derive its constructor from the fields; at run time all share
    the one below, which can tell a field that was given from one that was left out.
    """

    if TYPE_CHECKING:  # no hints at run time: what has one there is a field
        _given: frozenset[str]
        __signature__: ClassVar[inspect.Signature]

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True, init=False)(cls)
        cls.__signature__ = _signature_of(cls)
        cls.__doc__ = _docstring_of(cls)

    def __init__(self, *args: Any, **fields: Any) -> None:
        _reject_unknown(type(self), fields)
        given = self.__signature__.bind(*args, **fields).arguments
        object.__setattr__(self, "_given", frozenset(given))
        for field in fields_of(self):
            value = given[field.name] if field.name in given else self._default(field)
            object.__setattr__(self, field.name, self._checked(field, value))
        for field in fields_of(self):
            self._check_contradiction(field)

    @classmethod
    def _mode_defaults(cls, field: str) -> dict[str, Any]:
        """The defaults of a field that differ from the declared one, by the name of the mode that sets them."""
        return {}

    def _mode_name(self) -> str:
        """The mode whose defaults this object follows, if its class has modes."""
        return ""

    def _default(self, field: dataclasses.Field[Any]) -> Any:
        return self._mode_defaults(field.name).get(self._mode_name(), field.default)

    def _checked(self, field: dataclasses.Field[Any], value: Any) -> Any:
        declared = _declared(field)
        converted = value if declared.convert is None else declared.convert(value)
        if not declared.check.accepts(converted):
            self._fail(f"{field.name}={value!r} is not allowed; it must be {declared.check.allowed}")
        return converted

    def _check_contradiction(self, field: dataclasses.Field[Any]) -> None:
        needs, value = _declared(field).needs, getattr(self, field.name)
        if needs is None or not self.given(field.name) or bool(value) != needs.when or getattr(self, needs.other):
            return
        origin = "" if self.given(needs.other) else f" (the default of mode {self._mode_name()})"
        reason = f": {needs.because}" if needs.because else ""
        self._fail(
            f"{field.name}={value!r} contradicts {needs.other}=False{origin}{reason}; "
            f"set {needs.other}=True or leave {field.name} out"
        )

    def _fail(self, problem: str) -> NoReturn:
        raise ValueError(f"{type(self).__name__}: {problem}")

    def given(self, field: str) -> bool:
        """Was this field set by the caller, rather than by a default?"""
        return field in self._given

    def replace(self: Self, **fields: Any) -> Self:
        """A copy with some fields changed. Fields that were left out stay so, and follow a new mode."""
        return type(self)(**{**{name: getattr(self, name) for name in self._given}, **fields})


def _reject_unknown(settings: type[Settings], given: Iterable[str]) -> None:
    names = list(settings.__signature__.parameters)
    for name in given:
        if name in names:
            continue
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        known = ", ".join(sorted(names))
        raise ValueError(f"{settings.__name__}: there is no field {name!r}; {hint}Allowed are: {known}")


def _signature_of(settings: type[Settings]) -> inspect.Signature:
    """The constructor as the fields declare it; a field with a converter takes what the converter takes."""
    hints = typing.get_type_hints(settings)
    parameters = []
    for field in fields_of(settings):
        convert = _declared(field).convert
        hint = hints[field.name] if convert is None else typing.get_type_hints(convert)["value"]
        kind = inspect.Parameter.KEYWORD_ONLY if field.kw_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters.append(inspect.Parameter(field.name, kind, default=field.default, annotation=hint))
    return inspect.Signature(parameters)


# Documentation and availability of fields


class FieldDoc(NamedTuple):
    """A field for people: its documentation as text."""

    name: str
    meaning: str
    default: str
    allowed: str
    available: str  # in this version: "yes", "no", "no effect", or "only" and the values


def field_docs(settings: type[Settings]) -> list[FieldDoc]:
    """The documentation of every field, in order; docstrings and docs/CONFIG.md are made from it."""
    fields = {field.name: _declared(field) for field in fields_of(settings)}
    return [
        FieldDoc(
            name=field.name,
            meaning=fields[field.name].doc,
            default=_default_text(settings, field),
            allowed=fields[field.name].check.allowed,
            available=_available_text(fields[field.name], fields),
        )
        for field in fields_of(settings)
    ]


def _default_text(settings: type[Settings], field: dataclasses.Field[Any]) -> str:
    if isinstance(field.default, enum.Enum):
        return field.default.name
    others = {mode: value for mode, value in settings._mode_defaults(field.name).items() if value != field.default}
    return repr(field.default) + "".join(f", but {value!r} in {mode}" for mode, value in others.items())


def _available_text(declared: _Declaration, others: Mapping[str, _Declaration]) -> str:
    if declared.missing is not None:
        values = [repr(value) for value in declared.harmless if value not in _OFF]
        return f"only {' and '.join(values)}" if values else "no"
    if declared.needs is not None and others[declared.needs.other].missing is not None:
        return "no effect"
    return "yes"


def _docstring_of(settings: type[Settings]) -> str:
    lines = [inspect.cleandoc(settings.__doc__ or ""), "", "Attributes:"]
    for doc in field_docs(settings):
        note = "" if doc.available == "yes" else f" In this version: {doc.available}."
        text = f"{doc.name}: {doc.meaning} Default: {doc.default}. Allowed: {doc.allowed}.{note}"
        lines += textwrap.wrap(text, 100, initial_indent=" " * 4, subsequent_indent=" " * 8, break_on_hyphens=False)
    return "\n".join(lines)


def check_available(config: Settings) -> None:
    """Raise ``MemScaleError`` for a field that asks for something that is not in this version.

    Only what the caller gave counts: the default of a mode skips what is missing.
    """
    for field in fields_of(config):
        value, declared = getattr(config, field.name), _declared(field)
        if declared.missing is not None and config.given(field.name) and value not in declared.harmless:
            raise MemScaleError(
                f"{field.name}={value!r} asks for {declared.missing}, which is not in this version; "
                f"leave {field.name} out"
            )
