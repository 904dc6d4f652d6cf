"""mini-swe-agent with its own prompts and its shell: python mini_swe_program.py"""

from pathlib import Path

import yaml
from episode import QUESTION, report
from minisweagent import package_dir
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

settings = yaml.safe_load(Path(package_dir, "config", "mini.yaml").read_text())
# "openai" is litellm's word for a server that OPENAI_BASE_URL names
model = LitellmModel(
    model_name="openai/policy", cost_tracking="ignore_errors", **settings.get("model", {})
)
agent = DefaultAgent(model, LocalEnvironment(), **settings["agent"])
report(agent.run(QUESTION)["submission"].strip())
