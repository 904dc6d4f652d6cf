"""Step files: a step's live files, their sealing into a shard, and the folders of shards."""
