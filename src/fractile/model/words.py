"""Make foreign text safe to quote in our sentences: one line, printable, and short.

A terminal obeys control characters, a line break ends a log line, and a sentence about many nodes is written once for
each node.
"""

LONGEST_QUOTE = 100  # characters of a name or a value inside a sentence
LONGEST_SENTENCE = 1024


def printable(text: str) -> str:
    """The text with every non-printable character replaced by a question mark: control characters, line breaks, marks
    that change the direction of writing."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def unformatted(text: str) -> str:
    """The text without percent signs: kube-scheduler uses an extender's message as the format string of its event, so
    "90 % of" would become "90 %!o(MISSING)f". Our sentences say "percent"; signs in quoted names become U+FF05, which
    looks the same."""
    return text.replace("%", "\uff05")


def quoted(text: str, most: int = LONGEST_QUOTE) -> str:
    """The printable text, cut to at most ``most`` characters, "..." included."""
    return printable(text if len(text) <= most else f"{text[: most - 3]}...")


def listed(names: tuple[str, ...], between: str, most: int) -> str:
    """The first of the names, each shortened, and how many more there are."""
    said = between.join(map(quoted, names[:most]))
    return said if len(names) <= most else f"{said} and {len(names) - most} more"
