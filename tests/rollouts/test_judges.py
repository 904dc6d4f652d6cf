"""A model on a server as a judge: a reward function asks it, and what it cannot say is no reward of
0.
"""

from __future__ import annotations

from agentrl.envs import EpisodeView, Score
from agentrl.llm import ChatClient, ChatServerSpec
from tests.agent_server.served_policy import serving
from tests.llm.odd_server import Reply, failed, odd_server, said
from tests.rollouts.bytewise import play, say


class Judge:
    """Scores an answer by the number that a server says of it."""

    def __init__(self, client: ChatClient) -> None:
        self.client = client

    async def __call__(self, view: EpisodeView) -> Score:
        question = f"From 0 to 10, how good is {view.final_text!r}?"
        answer = await self.client.chat(
            [{"role": "user", "content": question}], max_tokens=8, temperature=0.0
        )
        why = {"prompt": question, "answer": answer.text}
        return Score(float(answer.text) / 10, why)


def judge_at(url: str) -> Judge:
    return Judge(ChatClient(ChatServerSpec(url, "m", max_retries=1, max_backoff_s=0.01)))


async def test_a_judge_on_a_served_policy_scores_an_episode() -> None:
    async with serving([say("7")], max_prompt_tokens=400) as served:
        judge = judge_at(f"{served.url}/v1")
        trajectory = await play([say("fine")], reward=judge)
        await judge.client.close()
    assert trajectory.reward == 0.7
    question = "From 0 to 10, how good is 'fine'?"
    assert trajectory.reasons == {"Judge": {"prompt": question, "answer": "7"}}
    assert served.kept == []  # a judge's own turns are nobody's episode
    assert served.engine.requests[0].sampling.temperature == 0.0
    assert judge.client.usage.requests == 1


async def test_a_judge_that_infrastructure_fails_for_a_moment_is_asked_again() -> None:
    async with odd_server(failed(503), said("5")) as server:
        judge = judge_at(server.url)
        trajectory = await play([say("fine")], reward=judge)
        await judge.client.close()
    assert (trajectory.reward, judge.client.usage.retries) == (0.5, 1)


async def test_a_judge_that_fails_for_good_fails_the_reward() -> None:
    async with odd_server(failed(500)) as server:
        judge = judge_at(server.url)
        trajectory = await play([say("fine")], reward=judge)
        await judge.client.close()
    assert (str(trajectory.status), trajectory.reward) == ("failed(reward)", None)
    assert server.url in trajectory.status.detail


async def test_a_judge_that_says_no_number_fails_the_reward() -> None:
    async with odd_server(said("very good")) as server:
        judge = judge_at(server.url)
        trajectory = await play([say("fine")], reward=judge)
        await judge.client.close()
    assert (str(trajectory.status), trajectory.reward) == ("failed(reward)", None)


async def test_a_judge_that_breaks_off_is_asked_again() -> None:
    async with odd_server(Reply(200, "half", cut=2), said("1")) as server:
        judge = judge_at(server.url)
        assert (await play([say("fine")], reward=judge)).reward == 0.1
        await judge.client.close()
