"""Runs steps whose deferred part is still to come: the programs fresh, steady and flush."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from caramel.core.names import TensorRef, freed, token_count, token_filled
from caramel.core.plan import Plan
from caramel.modifiers.defer import kept_by, moved_ops
from caramel.modifiers.step_tokens import token_variables
from caramel.native.session import UnreadError
from caramel.runtime.execution.calls import DEFAULT, CallOptions, CallThread
from caramel.runtime.execution.runner import Call
from caramel.runtime.execution.variant_runner import VariantRunner
from caramel.runtime.steps.marks import StepMarks

_MEND_EVERY_S = 0.2
_SETTLED_S = 0.1  # without a token being taken, after a call has failed
_CLOSE_TIMEOUT_S = 5.0

_log = logging.getLogger(__name__)


class Pending:
    """What a plan still has to do of the step before.

    Args:
        runner: runs parts of the plan's graph.
        plan: says what moves into the next step.

    Attributes:
        marks: how far the call that is under way has come.
    """

    def __init__(self, runner: VariantRunner, plan: Plan) -> None:
        self._runner = runner
        self.marks = StepMarks(runner, plan)
        self._moved = moved_ops(plan)
        self._free = [freed(k) for w in range(plan.workers) for k in kept_by(plan, w)]
        pairs = [(w, v) for w in range(plan.workers) for v in token_variables(plan)]
        self._counts = [token_count(*pair) for pair in pairs]
        self._fill = [token_filled(*pair) for pair in pairs]
        self._has_begun = self._is_prepared = False
        self._is_pending = False
        self._is_kept = False  # whether variables hold anything
        self._parts_done = 0
        self._beside = CallThread("caramel-moved") if self._moved else None

    @property
    def preparation(self) -> list[str]:
        """Ops to run before the first step: then every token is there, and no mark."""
        return [*self._fill, *self.marks.clears]

    def begin(self) -> None:
        """Prepare the first step. It can be called again after an interruption: no token is put
        twice."""
        if self.preparation and not self._is_prepared:
            self._runner.call(self._prepare, "preparing the first step")

    def _prepare(self) -> list[Any]:
        if self._has_begun:  # and failed
            self._mend(DEFAULT)
            if self.marks.clears:
                self._runner.compile([], self.marks.clears, {})()
        else:
            self._has_begun = True
            self._runner.compile([], self.preparation, {})()
        self._is_prepared = True
        return []

    @property
    def defers(self) -> bool:
        """Whether anything of a step is ever left to be done."""
        return bool(self._moved)

    @property
    def is_pending(self) -> bool:
        """Whether anything of the last step is left to be done."""
        return self._is_pending

    @property
    def parts_done(self) -> int:
        """How often the deferred part of a step was done so far."""
        return self._parts_done

    def step(
        self,
        tensors: Sequence[TensorRef],
        targets: Sequence[str],
        fed: Mapping[TensorRef, Any],
        what: str,
        options: CallOptions = DEFAULT,
    ) -> list[Any]:
        """Run a step, beside it what is pending of the one before; then the step's is pending.

        Raises:
            tf.errors.OpError: an op failed; if one of each part, that of the step before. If it was
                one of the step, the updates of the step before are done; of this one nothing is
                pending. If it was one of the step before only, the step was done, but for its own
                deferred part: that is dropped, since it was computed from what should have been
                updated.
            Exception: what is fed or fetched cannot be converted. If it is fed, the updates of the
                step before are done, and the step was not; if it is fetched, the step was done, and
                its deferred part is pending.
        """
        if not self._moved:
            with self.marks.during(options, step=True, moved=False):
                return self._runner.run(tensors, targets, fed, what, options)
        step = self._runner.compile(tensors, targets, fed, options)
        moved = self._runner.compile([], self._moved, {}, options) if self._is_pending else None

        def both() -> list[Any]:  # keeps account itself: whoever called may have been interrupted
            self._is_pending, self._is_kept = False, True
            try:
                results = self._together(step, moved, options)
            except UnreadError:
                self._was_done(moved)
                raise
            self._was_done(moved)
            return results

        with self.marks.during(options, step=True, moved=moved is not None):
            return self._runner.call(both, what, options)

    def flush(self, what: str, options: CallOptions = DEFAULT) -> None:
        """Do what is pending, if anything is."""
        if not self._is_pending:
            return
        moved = self._runner.compile([], self._moved, {}, options)

        def rest() -> list[Any]:
            self._is_pending = False
            self._with_tokens(moved, options)
            self._parts_done += 1
            return []

        with self.marks.during(options, step=False, moved=True):
            self._runner.call(rest, what, options)

    def abandon(self) -> None:
        """Drop what is pending of a step that does not count; all tokens are there."""
        self._is_pending = False
        if not self._moved:
            return

        def settle() -> list[Any]:
            self._settle(DEFAULT)
            return []

        self._runner.call(settle, "giving up a step")

    def free(self) -> None:
        """Let go of what variables keep on the workers; nothing may be pending."""
        if self._is_kept:
            self._runner.run([], self._free, {}, "freeing what was kept")
            self._is_kept = False

    def close(self) -> None:
        """End the thread, if no call is under way."""
        if self._beside is not None:
            self._beside.end(_CLOSE_TIMEOUT_S)

    def _was_done(self, moved: Call | None) -> None:
        """A step was done, and beside it what was pending."""
        self._parts_done += moved is not None
        self._is_pending = True

    def _together(self, step: Call, moved: Call | None, options: CallOptions) -> list[Any]:
        """Both parts at the same time; if one fails the other ends, and all tokens are there.

        The moved part is called first, so that its few ops do not queue behind the hundreds with
        which a step begins: what they send is needed first.
        """
        if moved is None or self._beside is None:
            return self._with_tokens(step, options)
        has_begun, is_over = threading.Event(), threading.Event()
        other = self._beside.submit(lambda: self._beside_step(moved, has_begun, is_over, options))
        has_begun.wait()
        try:
            results = step()
        except UnreadError:  # the step was done
            is_over.set()
            self._raise_failure_of(other, options)
            raise
        except Exception as error:
            is_over.set()
            earlier = other.exception()
            self._settle(options)
            if earlier is not None:  # of the step before, and not told yet
                raise earlier from error
            raise
        finally:
            is_over.set()
        self._raise_failure_of(other, options)
        return results

    def _raise_failure_of(self, other: Future[None], options: CallOptions) -> None:
        """Wait for the moved part; if it has failed, put back all tokens, and raise."""
        if failure := other.exception():
            self._settle(options)
            raise failure

    def _beside_step(
        self,
        moved: Call,
        has_begun: threading.Event,
        step_is_over: threading.Event,
        options: CallOptions,
    ) -> None:
        """The moved part; if it fails, the step gets the tokens it waits for, and so ends."""
        has_begun.set()
        try:
            moved()
        except UnreadError:  # only its trace
            _log.info("the trace of a deferred part cannot be read", exc_info=True)
        except Exception:
            self._mend(options)
            while not step_is_over.wait(_MEND_EVERY_S):
                self._mend(options)
            raise

    def _with_tokens(self, call: Call, options: CallOptions) -> list[Any]:
        """Make a call; all tokens are there if it fails."""
        try:
            return call()
        except UnreadError:
            raise
        except Exception:
            self._settle(options)
            raise

    def _settle(self, options: CallOptions) -> None:
        """Put all tokens back after a call has failed, and see that they stay.

        TensorFlow tells the failure of one worker as soon as it knows of it. Another one may only
        then begin the same call, and take its tokens, before it hears that the call was given up.
        """
        self._mend(options)
        time.sleep(_SETTLED_S)
        while self._mend(options):
            time.sleep(_SETTLED_S)

    def _mend(self, options: CallOptions) -> bool:
        """Put the tokens that are missing; whether there were any."""
        counts = self._runner.compile(self._counts, [], {}, options)()
        missing = [name for name, count in zip(self._fill, counts, strict=True) if not count]
        if missing:
            self._runner.compile([], missing, {}, options)()
        return bool(missing)
