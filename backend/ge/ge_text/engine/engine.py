"""An engine of text generation: requests come and go, and every step brings each one further.

    receive → propose → schedule → run → advance → tell

`submit` and `cancel` may be called by any thread at any time; they only leave a note, so none
waits for a step. Everything else belongs to the one thread that steps.
"""

from __future__ import annotations

from collections.abc import Callable

from ge_backend.errors import GeError
from ge_text.engine.adapters import AdapterCache
from ge_text.engine.blocks import BlockPool, PrefixCache
from ge_text.engine.cache_size import cache_blocks
from ge_text.engine.chunk import ChunkController
from ge_text.engine.figures import Figures, Tally
from ge_text.engine.live import LiveRequest, LiveRequests
from ge_text.engine.plan import StepPlan, StepShapes
from ge_text.engine.preemption import Preemption
from ge_text.engine.runner import Outcome, Runner
from ge_text.engine.scheduler import Scheduler
from ge_text.engine.sequence import GenerationRequest, Limits
from ge_text.engine.settings import EngineSettings
from ge_text.engine.speculation.model import ModelDrafter
from ge_text.engine.speculation.speculation import open_speculation
from ge_text.engine.update import Sink
from ge_text.models.base import LanguageModel

__all__ = ["Engine"]


class Engine:
    """Runs one model, whose cache it opens, for any number of requests.

    Args:
        model: stays the caller's to close.
        clock: seconds, ever forward.
        draft: guesses tokens, where the settings say so; likewise the caller's.
        reserved: bytes of the device that a cache of no given size leaves to others.

    Attributes:
        limits: what one sequence may be.

    Raises:
        OutOfMemory: there is no memory for a cache.
    """

    def __init__(
        self,
        model: LanguageModel,
        settings: EngineSettings,
        clock: Callable[[], float],
        draft: LanguageModel | None = None,
        *,
        reserved: int = 0,
    ) -> None:
        num_blocks = cache_blocks(model, settings, draft, reserved)
        model.open_cache(num_blocks)
        self._pool = BlockPool(num_blocks, model.block_size)
        self.limits = Limits(
            vocabulary=model.vocabulary,
            max_positions=model.max_positions,
            cache_tokens=self._pool.capacity * model.block_size,
            block_size=model.block_size,
            max_seqs=settings.max_num_seqs,
        )
        self._settings = settings
        self._clock = clock
        self._tally = Tally()
        swap_blocks = settings.swap_bytes // model.cache_bytes_per_block()
        self._preemption = Preemption(settings.preemption, swap_blocks)
        self._prefixes = PrefixCache(self._pool, on=settings.prefix_cache)
        self._adapters = AdapterCache(model, settings.lora_bytes, self._tally)
        self._scheduler = Scheduler(
            self._pool,
            self._prefixes,
            self._preemption,
            max_tokens=settings.max_num_batched_tokens,
            max_seqs=settings.max_num_seqs,
            may_join=self._adapters.may_join,
        )
        self._chunk = ChunkController(
            fixed=settings.prefill_chunk,
            budget=settings.max_num_batched_tokens,
            target_s=settings.itl_target_ms / 1000,
        )
        self._runner = Runner(model, self._preemption, self._tally, clock, self._adapters)
        self._drafter = None if draft is None else ModelDrafter(draft, num_blocks, clock)
        self._speculation = open_speculation(settings, self._tally, clock, self._drafter)
        self._drafting_s = 0.0
        self._live = LiveRequests(self._scheduler, settings, model.eos, self._tally)

    @property
    def has_work(self) -> bool:
        """Whether there is any request that has not ended. Any thread may ask."""
        return bool(self._live.by_id)

    def use(self, shapes: StepShapes, draft: StepShapes | None = None) -> None:
        """Run in these shapes from now on, and so the model that guesses, if there is one.

        Until then they get any. Before the first step.
        """
        self._runner.shapes = shapes
        self._chunk.budget = min(self._chunk.budget, shapes.longest_query)
        if self._speculation is not None:
            self._speculation.limit(shapes.longest_query - 1)
        if self._drafter is not None and draft is not None:
            self._drafter.use(draft)

    def submit(self, request: GenerationRequest, sink: Sink) -> None:
        """Take a request on; `sink` gets its updates. Any thread.

        Raises:
            InvalidRequest: it can never be served; names the limit.
            QueueFull: too many wait.
        """
        max_output = self.limits.output_tokens(request)
        if request.adapter is not None:
            self._adapters.check(request.adapter)
        self._live.submit(LiveRequest(request, sink, self._clock(), max_output))

    def cancel(self, name: str) -> None:
        """End a request with the next step, if it has not ended by then. Any thread."""
        self._live.cancel(name)

    def step(self) -> StepPlan:
        """Bring the running sequences further; return what was planned for it.

        Raises:
            DeviceFault: the device broke; `abort` tells the clients.
        """
        begun_s = self._clock()
        self._live.receive(begun_s)
        plan = self._schedule()
        outcome = self._runner.run(plan)
        self._scheduler.advance(outcome.computed)
        if self._speculation is not None:
            self._speculation.learn(plan, outcome)
        now_s = self._clock()
        for drawn in outcome.drawn:
            self._live.take(drawn, now_s)
        for sequence, error in outcome.failed.items():
            self._live.fail(sequence, error, now_s)
        self._measure(plan, outcome, begun_s)
        return plan

    def abort(self, error: GeError) -> None:
        """End all requests with an error. For the thread that steps."""
        now_s = self._clock()
        self._live.receive(now_s)
        self._live.end_all(error, now_s)

    def figures(self) -> Figures:
        """Return what it has done and has. Any thread; sums may be a step apart from each other."""
        waiting = list(self._scheduler.waiting)
        return Figures(
            waiting=len(waiting),
            running=len(self._scheduler.running),
            swapped=sum(sequence.swapped > 0 for sequence in waiting),
            blocks_used=self._pool.num_used,
            blocks_free=self._pool.num_free,
            blocks_kept=self._pool.num_kept,
            adapters=len(self._adapters.held),
            adapter_bytes=sum(list(self._adapters.held.values())),
            counts={
                **self._tally.counts,
                "prefix_asked_tokens": self._prefixes.asked,
                "prefix_found_tokens": self._prefixes.found,
                "prefix_evicted_blocks": self._pool.evicted,
            },
            buckets=dict(self._tally.buckets),
            histograms=self._tally.pictures(),
        )

    def _schedule(self) -> StepPlan:
        begun_s = self._clock()
        chunk = self._chunk.tokens(*self._scheduler.num_lacking)
        drafts = None
        if self._speculation is not None:
            drafts = self._speculation.propose(self._scheduler.running)
            self._drafting_s = self._speculation.seconds
            self._tally.observe("drafting", self._drafting_s)
        plan = self._scheduler.schedule(chunk, drafts)
        self._tally.observe("scheduling", self._clock() - begun_s - self._drafting_s)
        return plan

    def _measure(self, plan: StepPlan, outcome: Outcome, begun_s: float) -> None:
        """Learn from a step, and count it."""
        if not outcome.computed:
            return
        busy_s = outcome.model_s + self._drafting_s
        computed = sum(s.count for s in plan.spans if s.sequence not in outcome.failed)
        decodes = sum(span.known == 1 for span in outcome.computed)
        prompts = sum(span.known for span in outcome.computed) - decodes
        if not outcome.failed:
            self._chunk.observe(decodes=decodes, prompt_tokens=prompts, seconds=busy_s)
            self._preemption.token_s = self._chunk.token_s
        tally = self._tally
        tally.add("steps")
        tally.add("computed_tokens", computed)
        tally.add("recomputed", len(plan.recomputed))
        tally.observe("step", outcome.model_s)
        tally.observe("overhead", self._clock() - begun_s - busy_s)
        tally.observe("step_tokens", computed)
        tally.observe("fill", len(plan.spans) / self._settings.max_num_seqs)
