"""Checks of what a handler is registered for."""

import functools
import inspect
import types
import typing
from collections.abc import Callable
from typing import (
    Annotated,
    Any,
    Literal,
    NewType,
    TypeVar,
    Union,
    get_args,
    get_origin,
    is_typeddict,
)

from batchqueue.config import BatchQueueConfig
from batchqueue.exceptions import ConfigError

F = TypeVar("F", bound=Callable[..., Any])

_TypeAlias: Any = getattr(typing, "TypeAliasType", ())  # of a `type` statement, from 3.12 on


def check_item_type(
    item_type: object, config: BatchQueueConfig[Any], *, subclasses: bool = False
) -> None:
    """Raise ConfigError for a type that no item can have, and for a handler beside a consumer.

    What is neither a class nor a str is left to the core.
    """
    if config.consumer is not None or config.consumer_factory is not None:
        given = "consumer" if config.consumer is not None else "consumer_factory"
        raise ConfigError(
            f"the queue has a {given}, which gets the items of all types: a handler of "
            f"{_name_of(item_type)} would get none; leave {given} out of the config and add "
            "handlers, or handle the type in the consumer"
        )
    if subclasses and isinstance(item_type, str):
        raise ConfigError(
            f"item_type is the tag {item_type!r} with subclasses=True, and a tag has none; leave "
            "subclasses out"
        )
    if item_type is Any:
        raise ConfigError(
            "item_type is Any, and no item is of that class; give the class of the items, or a "
            "consumer in the config for items of all classes"
        )
    refuse_annotation(item_type)
    if isinstance(item_type, type):
        if getattr(item_type, "_is_protocol", False):
            raise ConfigError(
                f"item_type is the Protocol {item_type.__qualname__}, and no item is of that "
                "class; give the class of the items"
            )
        if is_typeddict(item_type):
            raise ConfigError(
                f"item_type is the TypedDict {item_type.__qualname__}, whose items are of class "
                "dict; give dict, or make the items a dataclass"
            )
        if not subclasses and inspect.isabstract(item_type):
            raise ConfigError(
                f"item_type is the abstract class {item_type.__qualname__}, and items are of its "
                "subclasses only; give subclasses=True, or the class of the items"
            )


def refuse_annotation(item_type: object) -> None:
    """Raise ConfigError for what annotates variables and is not a class: say which class to give.

    Other values are left to the core.
    """
    remedy = _class_behind(item_type)
    if remedy is not None:
        raise ConfigError(
            f"item_type is {item_type!r}, and no item is of that class: items go by `type(item)`; "
            f"give {remedy}"
        )


def _class_behind(item_type: Any) -> str | None:
    """Say what to give for an annotation; return None for anything else."""
    origin = get_origin(item_type)
    if origin is not None:
        return _class_of_alias(item_type, origin)
    if isinstance(item_type, NewType):
        return f"the class behind the NewType: {_name_of(item_type.__supertype__)}"
    if isinstance(item_type, TypeVar):
        return "the class that the TypeVar stands for, once for each class"
    if isinstance(item_type, _TypeAlias):
        return f"the class behind the alias: {_name_of(item_type.__value__)}"
    return None


def _class_of_alias(alias: Any, origin: Any) -> str | None:
    if origin in (Union, types.UnionType):
        members = " and ".join(_name_of(member) for member in get_args(alias))
        return f"a class, and add the handler once for each member: {members}"
    if origin is Literal:
        classes = dict.fromkeys(type(value).__qualname__ for value in get_args(alias))
        return f"the class of the values: {' or '.join(classes)}"
    if origin is Annotated:
        return f"the class that it annotates: {_name_of(alias.__origin__)}"
    if isinstance(origin, type):
        return f"the class without its arguments: {_name_of(origin)}"
    return None


def check_decorated_type(item_type: object) -> None:
    """Raise ConfigError for `@queue.handler` without a type: the handler is in its place."""
    refuse_annotation(item_type)
    is_class = isinstance(item_type, type)
    if (is_class and callable(getattr(item_type, "consume", None))) or (
        not is_class and not isinstance(item_type, str) and callable(item_type)
    ):
        raise ConfigError(
            f"@queue.handler got {_name_of(item_type)} as the type of its items, which looks like "
            "the handler; name the class of the items: @queue.handler(Order)"
        )


def named_item_type(method: F) -> F:
    """Let `@queue.handler()` say what is missing: the class of the items."""

    @functools.wraps(method)
    def checked(*args: Any, **options: Any) -> Any:
        if len(args) == 1 and "item_type" not in options:
            raise ConfigError(
                "@queue.handler() does not say which items the handler gets; name their class: "
                "@queue.handler(Order)"
            )
        return method(*args, **options)

    return typing.cast(F, checked)


def _name_of(item_type: object) -> str:
    return getattr(item_type, "__qualname__", None) or repr(item_type)
