"""Names of item types, as logs and metrics show them."""


def type_name(item_type: type | str) -> str:
    """Return the qualified name of a class, with its module unless it is a built-in; or the tag."""
    if isinstance(item_type, str):
        return item_type
    module, name = item_type.__module__, item_type.__qualname__
    return name if module == "builtins" else f"{module}.{name}"


def unique_names(item_types: list[type | str]) -> list[str]:
    """Return the names of several types. Of equal names, the second gets ` #2`, and so on."""
    seen: dict[str, int] = {}
    names = []
    for item_type in item_types:
        name = type_name(item_type)
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name} #{seen[name]}")
    return names


def has_own_equality(item_type: type | str) -> bool:
    """Return whether a class is compared by its metaclass, so that it may be no key of a dict."""
    kind = type(item_type)
    return issubclass(kind, type) and (
        kind.__eq__ is not type.__eq__ or kind.__hash__ is not type.__hash__
    )
