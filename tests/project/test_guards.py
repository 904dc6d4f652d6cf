"""Bytes of others are read by agentrl.guards alone: who else parses, with the reason why it may."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "agentrl"

OWN = "a file, a line or a process of the run's own"
USERS = "what the user of this process wrote or named"
PATTERN = "a pattern that is not written there"
SANDBOX = "runs inside the sandbox, or reads what the host wrote; bounded there"

# by module: the uses that it may have, and why
ALLOWED: dict[str, tuple[set[str], str]] = {
    "cli/terminal.py": ({"json.loads"}, OWN),
    "cli/try_command.py": ({"json.loads"}, USERS),
    "config/document.py": ({"YAML"}, USERS),
    "config/dump.py": ({"YAML"}, OWN),
    "controller/checkpoints/checkpoint_copies.py": ({"json.loads"}, OWN),
    "controller/checkpoints/stage_checkpoints.py": ({"json.loads"}, OWN),
    "controller/cluster/ray_cluster.py": ({"json.loads"}, OWN),
    "controller/ledger.py": ({"json.loads"}, OWN),
    "rollouts/samplers/prompt_sampler.py": ({"json.loads"}, OWN),
    "engines/openai.py": ({"json.loads"}, OWN),
    "engines/servers/environment.py": ({"json.loads"}, OWN),
    "engines/weights.py": ({"json.loads"}, USERS),
    "envs/rewards/judge.py": ({"json.loads"}, OWN),
    "envs/rewards/answers.py": ({"json.loads"}, OWN),
    "envs/rewards/math_worker.py": ({"json.loads"}, OWN),
    "envs/rewards/shape.py": ({"regex.compile"}, USERS),
    "envs/rewards/unit_test_sides/code_side.py": ({"json.loads"}, SANDBOX),
    "envs/rewards/unit_test_sides/single_test.py": ({"json.loads"}, SANDBOX),
    "envs/rewards/unit_test_sides/tests_side.py": ({"json.loads"}, SANDBOX),
    "envs/rewards/unit_tests.py": ({"json.loads"}, SANDBOX),
    "metrics/names.py": ({PATTERN}, OWN),
    "render/encode.py": ({"json.loads", PATTERN}, USERS),
    "render/template_renderer.py": ({PATTERN}, USERS),
    "render/vision.py": ({"json.loads"}, USERS),
    "run/data/row_tables.py": ({"json.loads", "pq.ParquetFile"}, USERS),
    "run/eval_file.py": ({"pq.read_table"}, OWN),
    "run/replay/difference.py": ({"json.loads"}, OWN),
    "sandbox/docker/images.py": ({"json.loads"}, SANDBOX),
    "sandbox/forkserver/local.py": ({"json.loads"}, SANDBOX),
    "sandbox/backends.py": ({"json.loads"}, SANDBOX),
    "store/shard.py": ({"pq.ParquetFile"}, "checks that it is a regular file"),
    "tools/execution/faults.py": ({PATTERN}, "escapes a host that the configuration names"),
    "tools/parsers/reading.py": ({PATTERN}, OWN),
    "tools/toolset.py": ({"json.loads"}, OWN),
    "tools/search/disk_index.py": ({"json.loads", "pq.ParquetFile"}, USERS),
    "training/data/demonstrations.py": ({"json.loads"}, USERS),
    "training/fsdp/checkpoint_export.py": ({"json.loads"}, OWN),
    "training/fsdp/checkpoint_files.py": ({"json.loads"}, OWN),
    "training/models/folder_weights.py": ({"json.loads", PATTERN}, USERS),
    "training/models/peft_folder.py": ({"json.loads", PATTERN}, USERS),
    "training/models/tiny.py": ({PATTERN}, USERS),
    "viewer/demo/__init__.py": ({"json.loads"}, OWN),
    "viewer/export/answers.py": (
        {"json.loads", PATTERN},
        "a run's own answers, and what its reader names",
    ),
    "viewer/index/text_search.py": ({PATTERN}, "escapes what is looked for"),
    "viewer/template/child.py": ({"json.loads"}, OWN),
}


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


PARSING = {"json.loads", "json.load", "YAML", "regex.compile", "html.parser.HTMLParser"}
PARSING |= {"HTMLParser", "Draft202012Validator", "pq.ParquetFile", "pq.read_metadata"}
PARSING |= {"pq.read_schema", "pq.read_table"}
MATCHING = {
    f"re.{name}" for name in ("compile", "fullmatch", "match", "search", "sub", "subn")
}
MATCHING |= {f"re.{name}" for name in ("findall", "finditer", "split")}
ADDRESS = {"is_global", "is_private"}


def uses(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and dotted(node.func) in PARSING:
            yield dotted(node.func)
        if isinstance(node, ast.ClassDef):
            yield from (dotted(base) for base in node.bases if dotted(base) in PARSING)
        if isinstance(node, ast.Attribute) and node.attr in ADDRESS:
            yield node.attr
        matches = isinstance(node, ast.Call) and dotted(node.func) in MATCHING
        if matches and not _is_written(node.args[0]):
            yield PATTERN


def _is_written(pattern: ast.expr) -> bool:
    """Whether a pattern is a constant, made of constants of its module at most."""
    if isinstance(pattern, ast.Call) and dotted(pattern.func) == "re.escape":
        return True
    kinds = (
        ast.Constant,
        ast.JoinedStr,
        ast.FormattedValue,
        ast.BinOp,
        ast.Attribute,
        ast.Call,
    )
    return all(
        isinstance(part, (*kinds, ast.Load, ast.operator))
        or (isinstance(part, ast.Name) and (part.id.isupper() or part.id in ("re", "map")))
        for part in ast.walk(pattern)
    )


def found() -> dict[str, set[str]]:
    everything: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        if not name.startswith(("guards/", "sandbox/host/")):
            own = set(uses(ast.parse(path.read_text(encoding="utf-8"))))
            if own:
                everything[name] = own
    return everything


def test_nobody_else_parses() -> None:
    assert found() == {name: kinds for name, (kinds, _) in ALLOWED.items()}
