"""Stage tokenizer: keeps the tokenizer and chat template of each stage in the run, by hash, so that
its tokens can be read when the model is gone.
"""

from __future__ import annotations

from pathlib import Path

from agentrl.store import RunDirectory, write_json

FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def keep_tokenizer(run: RunDirectory, stage: str, model: Path) -> None:
    """Keeps what a model's folder has of ``FILES`` as blobs, named in ``run.json`` under
    ``tokenizers`` and the stage; a resumed stage adds nothing that is there.

    Args:
        run: the run.
        stage: its name.
        model: the folder of the model that the stage starts from.

    Raises:
        StoreError: the run cannot be written.
    """
    found = {
        name: run.write_blob((model / name).read_bytes())
        for name in FILES
        if (model / name).is_file()
    }
    record = run.read_record()
    kept = record.get("tokenizers", {})
    if found and kept.get(stage) != found:
        write_json(run.record_path, {**record, "tokenizers": {**kept, stage: found}})
