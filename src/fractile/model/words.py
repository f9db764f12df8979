"""Text that somebody else wrote, made fit to stand in a sentence of ours: one line, printable, and short.

A terminal obeys control characters, a log line ends where a line break stands, and a sentence about many nodes is
written once for each of them.
"""

LONGEST_QUOTE = 100  # characters of a name or a value inside a sentence
LONGEST_SENTENCE = 1024


def printable(text: str) -> str:
    """The text with a question mark for every character that is no visible one: control characters, line breaks, marks
    that turn the direction of writing."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def unformatted(text: str) -> str:
    """The text without percent signs: kube-scheduler uses what an extender says as a format of its event, so "90 % of"
    would become "90 %!o(MISSING)f". Ours say "percent"; those in quoted names become U+FF05, which looks the same."""
    return text.replace("%", "\uff05")


def quoted(text: str, most: int = LONGEST_QUOTE) -> str:
    """The text in at most so many characters, "..." included."""
    return printable(text if len(text) <= most else f"{text[: most - 3]}...")


def listed(names: tuple[str, ...], between: str, most: int) -> str:
    """The first of the names, each shortened, and how many more there are."""
    said = between.join(map(quoted, names[:most]))
    return said if len(names) <= most else f"{said} and {len(names) - most} more"
