"""The job that a command of the command line works on: made by a function in a module of the user.

``my_job:make_context`` names a function without arguments that returns a `caramel.Context`, or a
`Context` and what one worker is fed. Of a job with several steps it returns one of `Context.steps`.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from caramel.capture.context import Context
from caramel.core.errors import CaramelError, FeedError, GraphError
from caramel.core.train_steps import told
from caramel.core.util.program import program_name
from caramel.core.util.progress import working
from caramel.runtime.steps.missing_feeds import MissingFeeds


@dataclass(frozen=True, slots=True)
class UserJob:
    """A job, and what one worker is fed: values by tensor or name, or a function of the step."""

    context: Context
    feed: Any = None


@working("building the job")
def load_job(text: str) -> UserJob:
    """Import the module, from the current directory too, and call the function.

    Args:
        text: ``module:function``.

    Raises:
        GraphError: there is no such module or function, it fails, or returns something else.
    """
    name, _, function_name = text.partition(":")
    if not name or not function_name:
        raise GraphError(f"'{text}' does not name a function; expected module:function")
    if name.endswith(".py"):
        raise GraphError(f"'{name}' is a file; write {name.removesuffix('.py')}:{function_name}")
    function = getattr(_module(name), function_name, None)
    if not callable(function):
        raise GraphError(f"module '{name}' has no function '{function_name}'")
    try:
        made = function()
    except CaramelError:
        raise
    except (Exception, SystemExit) as error:
        raise GraphError(f"{text} failed: {_describe(error)}") from error
    context, feed = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(context, Context):
        raise GraphError(
            f"{text} returned {type(made).__name__}; expected a caramel.Context, or a pair of a "
            "Context and a feed"
        )
    if context.name == program_name():  # that of this command says nothing
        context.name = name
    if len(context.steps) > 1:
        first, *_ = context.steps
        raise GraphError(
            f"the job of {text} has several steps, {told(context.steps)}; a command works on one: "
            f"let the function return context.steps[{first!r}]"
        )
    return UserJob(context, feed)


def check_fed(job: UserJob, text: str) -> None:
    """Raise if steps of a job are to be run, need to be fed, and nothing is fed.

    Args:
        job: the job.
        text: what names it.

    Raises:
        FeedError: placeholders need values.
    """
    if job.feed is not None:
        return
    about = job.context.job
    try:
        MissingFeeds().check(job.context, [about.train_op, about.loss.op], [])
    except FeedError as error:
        raise FeedError(
            f"{error}: {text} has to return a pair, the Context and what one worker is fed, as in "
            "'return context, {\"x:0\": values}'"
        ) from None


def _module(name: str) -> ModuleType:
    if os.getcwd() not in sys.path:  # a command's path begins with the command's own directory
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise GraphError(f"cannot import '{name}': {_describe(error)}") from error


def _describe(error: BaseException) -> str:
    """An exception on one line, with the place in the user's code that raised it."""
    own = os.path.dirname(__file__)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        # What stands in installed packages is not the user's.
        if not frame.filename.startswith((own, "<frozen", sys.prefix, sys.base_prefix))
    ]
    where = (
        f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""
    )
    message = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {message}{where}"
