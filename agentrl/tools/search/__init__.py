"""Search: retrievers in memory, on disk and over HTTP, and the tool over one."""
