"""The scheduler: a queue, rows that decode together, and what happens to a request between them.

Everything here runs on the engine's own thread, so nothing is locked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from agentrl.engines.base import EngineHealth, PauseMode, Tag
from agentrl.engines.checks import require_new
from agentrl.engines.life import EngineLife
from agentrl.engines.torch.job import ScheduledRequest
from agentrl.engines.torch.memory import out_of_memory
from agentrl.engines.torch.model.served_model import ServedModel
from agentrl.engines.torch.prefill import DETERMINISTIC_CHUNK, Prefiller, WaitingPrefill
from agentrl.engines.torch.row_layout import Blocks, attention_blocks, exchanges
from agentrl.engines.torch.rows import RowTable
from agentrl.engines.torch.sampling import SamplingRows, sample, uniforms
from agentrl.engines.torch.sessions import KVSession, SessionCache
from agentrl.engines.torch.torch_spec import RowPlan
from agentrl.errors import EngineError
from agentrl.types import Completion, FinishReason
from agentrl.types.arrays import common_prefix

LOWER = (
    "lower EnginePlace.max_running, EnginePlace.context_tokens or EnginePlace.kv_tokens",
)
"""What takes less memory in this engine."""
_BATCH_SHARE = 4
_HOLD_BACK_STEPS = 8


class KVState:
    """The decode rows, empty at first, made and dropped as one (``sleep`` frees them): their KV,
    their host arrays, the sessions in them, and the forward passes over them.
    """

    def __init__(self, plan: RowPlan, model: ServedModel) -> None:
        try:
            self.kv, self.decoder = model.empty_rows(plan.num_rows, plan.context_tokens)
        except Exception as error:
            what = f"TorchEngine's KV cache of {plan.num_rows} rows of {plan.context_tokens} tokens"
            if text := out_of_memory(what, error, LOWER):
                raise EngineError(text, retryable=False) from error
            raise
        self.table = RowTable(plan.num_rows, self.kv.capacity, self.kv.trash)
        self.cache = SessionCache(self.table, self.kv, plan.parked_tokens)
        self.prefiller = Prefiller(
            self.decoder, self.kv, model.num_heads, model.device, fixed=plan.in_order
        )


class TorchScheduler:
    """Continuous batching over ``plan.num_rows`` rows, none while it is asleep.

    A request waits in the queue, is prefilled in a row, decodes there one token a step with all
    others, and leaves; its session stays in the row for the next turn. Rows 0..span-1 decode, idle
    ones among them as padding, and running rows are moved together once a tenth of the span is idle
    (``row_layout.py``).
    """

    def __init__(
        self,
        plan: RowPlan,
        weights: ServedModel,
        life: EngineLife,
        decode: Callable[[npt.NDArray[np.int32]], str] | None = None,
    ) -> None:
        self.admitting = True
        # seconds of engine time, which stops while it is paused
        self.now = life.clock.now
        # answered
        self.outbox: list[ScheduledRequest] = []
        # what an exact model gives depends on no order
        self._plan = replace(plan, in_order=plan.in_order and not weights.exact)
        self._weights = weights
        self._life = life
        self._as_text = decode
        self._rows = KVState(self._plan, weights)
        # of sessions with KV here: they go first, so that it is not evicted
        self._returning: deque[ScheduledRequest] = deque()
        self._arriving: deque[ScheduledRequest] = deque()
        self._held_back = 0
        self._jobs: dict[str, ScheduledRequest] = {}
        # by row
        self._running: dict[int, ScheduledRequest] = {}
        self._next_expiry = float("inf")
        # whether any request wants more after a token than that it is kept
        self._watched = False
        self._live: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._span = 0
        self._sampling = SamplingRows()
        self._changed = False

    @property
    def num_waiting(self) -> int:
        return len(self._returning) + len(self._arriving)

    @property
    def drained(self) -> bool:
        return not self._running

    @property
    def has_work(self) -> bool:
        return bool(self._running or (self.num_waiting and self.admitting))

    def health(self) -> EngineHealth:
        """See ``EngineControl.health``; from any thread."""
        return EngineHealth(
            self._life.state,
            len(self._running),
            self.num_waiting,
            self._rows.cache.kv_tokens,
            self._life.policy_version,
        )

    def submit(self, job: ScheduledRequest) -> None:
        """Queues a validated request."""
        request = job.request
        try:
            if self._life.fault:
                raise self._life.error()
            require_new(request, self._jobs)
            if self._weights.images is not None:
                job.images = self._weights.images.mark(job.ids, request)
        except EngineError as error:
            self._answer(job, error)
            return
        self._jobs[request.request_id] = job
        known = self._rows.cache.holds(request.session_id)
        (self._returning if known else self._arriving).append(job)
        self._next_expiry = min(self._next_expiry, job.deadline)
        self._watched |= bool(request.sampling.stop) or request.on_tokens is not None

    def abort(self, request_ids: Sequence[str]) -> None:
        """Ends requests with what they have; unknown ids are ignored."""
        for request_id in request_ids:
            if request_id in self._jobs:
                self.abort_job(self._jobs[request_id])

    def abort_job(self, job: ScheduledRequest) -> None:
        """Ends this very request, where it is still in flight."""
        # A later request may have the same id by now.
        if self._jobs.get(job.request.request_id) is job:
            self._withdraw(job)
            self._answer(job, job.completion("abort", self.now()))

    def release(self, session_id: str) -> None:
        """Frees a session's KV, at once or when its request has ended."""
        self._rows.cache.release(session_id)

    def step(self) -> None:
        """Admits what fits, then samples one token for every running request."""
        self._expire()
        if self.num_waiting and self.admitting and self._worth_prefilling():
            self._admit()
        if self._changed:
            self._arrange()
        if self._live.size:
            self._decode()

    def retract(self) -> None:
        """Sends running requests back to the head of the queue with what they sampled; all KV is
        dropped.
        """
        jobs = self._running
        # The latest goes to the front first, so that the oldest ends there. The inner sort settles
        # ties by row: the order of the mapping is that of admission.
        for row in sorted(sorted(jobs), key=lambda row: jobs[row].submitted, reverse=True):
            self._returning.appendleft(self._leave(row))
        self._rows.cache.forget_all()
        self._arrange()

    def pause(self, mode: PauseMode) -> None:
        """See ``EngineControl.pause``; nothing is waited for."""
        self._life.pause(mode)
        if mode == "retract":
            self.retract()

    def sleep(self, tags: Sequence[Tag]) -> None:
        """See ``EngineControl.sleep``: drops KV memory."""
        if self._running:
            raise EngineError(
                f"sleep: {len(self._running)} requests are running or interrupted in place; "
                "call pause('drain') or pause('retract') first",
                retryable=False,
            )
        if "kv_cache" in tags:
            self._life.sleep(["kv_cache"])
            self.retract()
            # No rows, and not None: health and releases are answered while it sleeps.
            self._rows = KVState(replace(self._plan, num_rows=0), self._weights)

    def wake(self, tags: Sequence[Tag]) -> None:
        """See ``EngineControl.wake``: takes KV memory again."""
        if "kv_cache" in tags and self._life.asleep:
            self._rows = KVState(self._plan, self._weights)
            self._life.wake(["kv_cache"])

    def mark_corrupt(self, cause: str) -> None:
        """Fails every request: the weights are no longer those of one version."""
        self._life.mark_corrupt(cause)
        self.fail_all()

    def fail_all(self) -> None:
        """Fails every request, without relying on anything that a crash may have left half done:
        nothing runs any more.
        """
        for job in list(self._jobs.values()):
            self._answer(job, self._life.error())
        for jobs in (self._returning, self._arriving, self._running):
            jobs.clear()

    def _withdraw(self, job: ScheduledRequest) -> None:
        if job.row is None:
            (self._returning if job in self._returning else self._arriving).remove(job)
        else:
            self._leave(job.row)

    def _expire(self) -> None:
        now = self.now()
        if now < self._next_expiry:
            return
        for job in [job for job in self._jobs.values() if job.deadline <= now]:
            self._withdraw(job)
            message = (
                f"request {job.request.request_id!r} spent its deadline_s={job.request.deadline_s} "
                f"of engine time after {job.logprobs.size} tokens; raise it, or lower "
                "max_new_tokens or EnginePlace.max_running"
            )
            self._answer(job, EngineError(message))
        self._next_expiry = min(
            (job.deadline for job in self._jobs.values()), default=float("inf")
        )

    def _worth_prefilling(self) -> bool:
        """Whether to prefill now, or to let the running rows go on until more has come to be
        prefilled together.

        A prefill of few tokens costs nearly as much as one of many, and while it runs nothing is
        decoded.
        """
        running = len(self._running)
        ready = min(self.num_waiting, self._plan.num_rows - running)
        if not ready:
            return False
        self._held_back += 1
        if ready * _BATCH_SHARE < running and self._held_back <= _HOLD_BACK_STEPS:
            return False
        self._held_back = 0
        return True

    def _admit(self) -> None:
        state = self._rows
        skipped = []
        # by the ids of a whole prompt, or by the row of what goes on behind KV that there is
        pending: dict[bytes | int, WaitingPrefill] = {}
        free = self._plan.num_rows - len(self._running)
        while self.num_waiting and free:
            job = (self._returning or self._arriving).popleft()
            try:
                self._life.require_version(job.request)
            except EngineError as error:
                self._answer(job, error)
                continue
            session = state.cache.open(job.request.session_id)
            if session.busy:
                # a session's requests run one after the other
                skipped.append(job)
                continue
            free -= 1
            self._enter(job, session, pending)
        # They go back to the head in the order in which they stood there.
        self._returning.extendleft(reversed(skipped))
        if pending:
            self._prefill(list(pending.values()))

    def _enter(
        self,
        job: ScheduledRequest,
        session: KVSession,
        pending: dict[bytes | int, WaitingPrefill],
    ) -> None:
        """Gives the job a row and what KV there is, and notes what is left to prefill."""
        state = self._rows
        ids = job.ids
        row = state.cache.place(session)
        # the last id must be fed again for its logits, so at most n-1 positions are taken from the
        # cache
        reused = self._reusable(
            common_prefix(ids[:-1], state.table.held(row)), session.pure
        )
        sibling = None if reused else pending.get(ids.tobytes())
        if sibling is not None:
            sibling.rows.append(row)
            reused = ids.size
        else:
            if reused == 0 and (found := state.cache.find_prompt(ids)) is not None:
                source, pure = found
                reused = self._reusable(ids.size - 1, pure)
                state.kv.copy(source, row, reused)
            pending[row if reused else ids.tobytes()] = WaitingPrefill([row], ids, reused)
            if reused == 0:
                state.cache.remember_prompt(session, ids)
        session.pure = ids.size
        state.table.begin(row, job)
        job.row = row
        self._running[row] = job
        job.mark(self._life.policy_version)
        if job.started is None:
            job.started = self.now()
            job.cached_tokens = reused
        self._changed = True

    def _reusable(self, tokens: int, pure: int) -> int:
        """How many of the ``tokens`` positions that agree may be used again."""
        if not self._plan.in_order:
            return tokens
        return min(tokens, pure) // DETERMINISTIC_CHUNK * DETERMINISTIC_CHUNK

    def _prefill(self, pending: Sequence[WaitingPrefill]) -> None:
        state = self._rows
        table = state.table
        began = self.now()
        for items, logits in state.prefiller.run(pending):
            rows = []
            sources = []
            for index, item in enumerate(items):
                for row in item.rows:
                    table.kv_len[row] = item.first
                    table.inputs[1, row] = item.first - 1
                    state.kv.set_visible(row, item.first)
                    rows.append(row)
                    sources.append(index)
                    self._running[row].prefill_s += self.now() - began
            chosen = np.array(rows, dtype=np.int64)
            spread = logits if len(rows) == len(items) else logits[sources]
            self.advance(
                spread, chosen, table.sampling(chosen, chosen, self._weights.device), chosen
            )

    def _decode(self) -> None:
        """One token for every running row, in one forward over the span."""
        state = self._rows
        table = state.table
        live = self._live
        kv = state.kv
        inputs = torch.from_numpy(table.inputs[:, : self._span]).to(self._weights.device)
        if self._plan.in_order:
            # A product over another number of keys may add up in another order.
            blocks: Blocks = ((self._span, kv.max_keys),)
        else:
            blocks = attention_blocks(table.keys(self._span), kv.max_keys)
        logits = state.decoder.decode(inputs[0], inputs[1], blocks)
        table.kv_len[live] += 1
        self.advance(logits, np.arange(self._span), self._sampling, live)

    def next_positions(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Of the token that each of ``rows`` samples next."""
        positions: npt.NDArray[np.int64] = self._rows.table.inputs[1, rows] + 1
        return positions

    def advance(
        self,
        logits: Tensor,
        rows: npt.NDArray[np.int64],
        params: SamplingRows,
        live: npt.NDArray[np.int64],
    ) -> None:
        """Draws for ``rows`` (one a row of logits) and lets the ``live`` ones among them go on or
        end.
        """
        table = self._rows.table
        device = self._weights.device
        draws = torch.from_numpy(uniforms(table.seeds[rows], self.next_positions(rows))).to(
            device
        )
        drawn = sample(logits, draws, params, exact=self._weights.exact).on_host()
        if live.size < rows.size:
            drawn = drawn.of(live)
        finite = np.isfinite(drawn.logprobs)
        if not finite.all():
            self._reject(live[~finite])
            live = live[finite]
            drawn = drawn.of(finite)
        stopped = table.accept(live, drawn.ids, drawn.logprobs)
        if params.num_alternatives:
            for place, row in enumerate(live.tolist()):
                self._running[row].add_alternatives(
                    drawn.alternative_ids[place], drawn.alternative_logprobs[place]
                )
        full = table.inputs[1, live] >= table.last[live]
        for index in np.flatnonzero(stopped | full):
            self._finish(int(live[index]), "stop" if stopped[index] else "length")
        if self._watched:
            self._watch(live)

    def _reject(self, rows: npt.NDArray[np.int64]) -> None:
        """Fails the requests whose logits are not finite; the cache is cleared of what they
        wrote.
        """
        for row in rows.tolist():
            position = int(self._rows.table.inputs[1, row]) + 1
            job = self._leave(row)
            self._rows.kv.clear_row(row)
            self._rows.cache.release(job.request.session_id)
            message = (
                f"request {job.request.request_id!r}: the logits at position {position} are "
                f"NaN or infinite under policy_version={self._life.policy_version}; the "
                "weights or the sequence make the model overflow: look at the gradient norm "
                "of the last update, or use EnginePlace.dtype=float32"
            )
            self._answer(job, EngineError(message, retryable=False))

    def _watch(self, live: npt.NDArray[np.int64]) -> None:
        """Looks for stop strings, and tells who listens of the token that was sampled last, where
        more will come.
        """
        for row in live.tolist():
            job = self._running.get(row)
            if job is None:
                continue
            ids, logprobs = self._rows.table.sampled(row)
            try:
                found = job.completed_stop(self._as_text, ids)
                if found is None and job.request.on_tokens is not None:
                    job.request.on_tokens(ids[-1:].copy(), logprobs[-1:].copy())
            except Exception as error:  # noqa: BLE001 - boundary: its request alone fails
                message = (
                    f"request {job.request.request_id!r}: what decodes its tokens for stop "
                    f"strings, or is told them, raised {type(error).__name__}: {error}; look there"
                )
                self._answer(self._leave(row), EngineError(message, retryable=False))
                continue
            if found is not None:
                self._finish(row, "stop", found)

    def _finish(
        self, row: int, reason: FinishReason, stop_string: str | None = None
    ) -> None:
        job = self._leave(row)
        self._answer(job, job.completion(reason, self.now(), stop_string))

    def _leave(self, row: int) -> ScheduledRequest:
        """Takes a running job out of its row, which keeps its KV for the session's next turn."""
        table = self._rows.table
        job = self._running.pop(row)
        # Copies, since the row's next request writes over its arrays.
        job.ids = table.ids[row, : int(table.inputs[1, row]) + 1].copy()
        job.logprobs = table.sampled(row)[1].copy()
        job.kv_tokens = int(table.kv_len[row])
        record = self._rows.kv.read_experts(row, job.unrecorded_from, job.kv_tokens)
        if record is not None:
            job.experts.append(record)
        job.row = None
        table.end(row)
        self._rows.cache.rest(job.request.session_id)
        self._changed = True
        return job

    def _answer(self, job: ScheduledRequest, answer: Completion | EngineError) -> None:
        job.answer = answer
        self.outbox.append(job)
        if self._jobs.get(job.request.request_id) is job:
            del self._jobs[job.request.request_id]

    def _arrange(self) -> None:
        """After a change: which rows run, how far the span reaches, and their sampling
        parameters.
        """
        self._changed = False
        if self._running and not self._plan.in_order:
            for one, other in exchanges(self._rows.table.keys(self._plan.num_rows)):
                self._rows.cache.swap(one, other)
                jobs = {
                    other: self._running.pop(one, None),
                    one: self._running.pop(other, None),
                }
                for row, job in jobs.items():
                    if job is not None:
                        job.row = row
                        self._running[row] = job
        running = sorted(self._running)
        self._live = np.array(running, dtype=np.int64)
        self._span = running[-1] + 1 if running else 0
        if self._plan.in_order:
            self._span = self._plan.num_rows
        if running:
            self._sampling = self._rows.table.sampling(
                slice(0, self._span), self._live, self._weights.device
            )
