"""`load_worker`: the worker of a user's program."""

import inspect
import sys
import traceback
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from batchqueue._words import a_type
from batchqueue.exceptions import BatchQueueError, ConfigError
from batchqueue.groups.worker import Worker

HOW = "write MODULE:ATTR, for instance billing:worker for the variable `worker` of billing.py"


def load_worker(name: str) -> Worker:
    """Import the worker that a name stands for. Modules in the current directory can be imported.

    Args:
        name: `MODULE:ATTR`, where the attribute, which may have dots, is a `Worker`, or a function
            without arguments that returns one.

    Raises:
        ConfigError: There is no such worker; the message has what was tried, and what to write.
    """
    module_name, colon, attribute = name.partition(":")
    if not (colon and module_name and attribute):
        raise ConfigError(f"{name!r} given; {HOW}")
    if module_name.endswith(".py") or "/" in module_name:
        raise ConfigError(
            f"{name!r} given, which names a file; {HOW}, from the directory of the file"
        )
    found: Any = _imported(name, module_name)
    module = found
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{name}: {_has_no(module, attribute)}; {HOW}")
        found = getattr(found, part)
    return found if isinstance(found, Worker) else _made(name, found)


def _imported(name: str, module_name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(module_name)
    except BatchQueueError:
        raise  # a setting of the worker: the message says which
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"{name}: no module {error.name!r}, neither in {here} nor among the installed "
                f"packages; {HOW}"
            ) from error
        raise ConfigError(f"{name}: {_failed(f'importing {module_name}', error)}") from error
    except Exception as error:
        raise ConfigError(f"{name}: {_failed(f'importing {module_name}', error)}") from error


def _made(name: str, function: Any) -> Worker:
    if not callable(function):
        raise ConfigError(
            f"{name} is {a_type(function)}; name a Worker, or a function without "
            "arguments that returns one"
        )
    _check_takes_nothing(name, function)
    try:
        made = function()
    except BatchQueueError:
        raise
    except Exception as error:
        raise ConfigError(f"{name}: {_failed('the call', error)}") from error
    if not isinstance(made, Worker):
        if inspect.iscoroutine(made):
            made.close()
        raise ConfigError(f"{name}() returned {a_type(made)}; let it return a Worker")
    return made


def _check_takes_nothing(name: str, function: Any) -> None:
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise ConfigError(
            f"{name} cannot be called without arguments ({error}); name a Worker, or a function "
            "without arguments that returns one"
        ) from error
    except ValueError:
        pass  # built-in functions may have no signature


def _has_no(module: ModuleType, attribute: str) -> str:
    place = f"{module.__name__} ({getattr(module, '__file__', None) or 'built in'})"
    workers = sorted(key for key, value in vars(module).items() if isinstance(value, Worker))
    there = f"its workers are: {', '.join(workers)}" if workers else "it has no Worker"
    return f"{place} has no {attribute!r}, {there}"


def _failed(what: str, error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    at = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{what} raised {type(error).__name__}: {error}{at}"
