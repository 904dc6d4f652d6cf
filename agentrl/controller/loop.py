"""Training loop: reads like the algorithm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl.types import Stats

if TYPE_CHECKING:
    from agentrl.controller.stage.stage_run import StageRun
    from agentrl.controller.state import TrainState


def train(run: StageRun) -> TrainState:
    """PPO; without a critic and a reference it is GRPO, with demonstrations it is supervised
    fine-tuning, and with preference pairs the learner is a reward model. A stage may train several
    learners on one batch.

    The schedule alone decides what overlaps: ``next_groups`` blocks until a batch may be trained,
    ``publish`` until the engines serve the new weights.

    Returns:
        The state after the last step.
    """
    algorithm = run.algorithm
    schedule = run.schedule
    state = run.restore()  # a checkpoint's state, or step 0
    schedule.start(state)  # engines serve these weights; admission opens
    run.evaluation.at_start(state, resumed=run.restored is not None)
    while state.step < run.stage.last_step:
        with run.timer.phase("wait_rollout"):
            groups = run.next_groups(state)  # finished, scored, filtered, fresh enough
        stats = Stats()
        # by policy; none where no group may be trained
        batches = run.assemble(groups, state)
        for policy, batch in batches.items():
            passes = run.passes[policy]
            with run.timer.phase("logprobs"):
                # what the algorithm needs: logprobs, advantages
                batch = passes.forward(batch)
            with run.timer.phase("update"):
                for mini_batch in batch.mini_batches(algorithm.num_epochs):
                    stats += passes.update(batch, mini_batch)  # every learner
            batches[policy] = batch
        own = algorithm.next_state(state.algorithm, stats)
        state = state.after(own, has_signal=run.has_signal(batches))
        schedule.mark_trained(groups, state.step)  # durable before anyone hears of it
        with run.timer.phase("publish"):
            state = run.publish(state, batches)  # version + 1
        run.evaluation.if_due(state)  # no publish, no new training episodes meanwhile
        run.record(state, groups, batches, stats)  # annotations, metrics, alerts
        run.checkpoint_if_due(state)
    return run.finish(state)
