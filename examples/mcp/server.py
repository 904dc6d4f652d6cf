"""Server: a library's catalogue as MCP tools over standard streams, as any MCP server would be."""

from __future__ import annotations

import random

from mcp.server.mcpserver import MCPServer

SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
NAMES = [first + second for first in SYLLABLES for second in SYLLABLES]
random.Random(0).shuffle(NAMES)
BOOKS, AUTHORS = NAMES[:4000], NAMES[4000:]
AUTHOR_OF = {book: AUTHORS[index % len(AUTHORS)] for index, book in enumerate(BOOKS)}
SHELF_OF = {author: str(100 + index) for index, author in enumerate(AUTHORS)}


def author(book: str) -> str:
    """Who wrote a book."""
    return AUTHOR_OF.get(book, "unknown book")


def shelf(author: str) -> str:
    """Where an author's books stand."""
    return SHELF_OF.get(author, "unknown author")


if __name__ == "__main__":
    server = MCPServer("library")
    server.tool()(author)
    server.tool()(shelf)
    server.run()
