"""The one exception tree. A refusal to place a pod is a value (``model.refusal``), never an exception.

FractileError            anything that a user or a peer can cause; its text is one sentence with the remedy
├── WireError            bytes from outside do not decode: annotation, extender body, cluster file, device id
├── ApiError             the API server answered with an error status (``fractile.kube``)
├── Unreachable          the API server did not answer; whether it acted on the call is unknown
│   └── NotSent          the call was not sent
│       └── NotLeading   since this replica does not lead, or no longer leads
└── SetupError           this machine cannot do what was asked: a program, a permission or a file is missing
"""


class FractileError(Exception):
    """Base of all errors whose text may be shown to users as it is."""


class WireError(FractileError):
    """Bytes or text from outside do not have the required form."""


class ApiError(FractileError):
    """The API server answered with a status of 400 or above; ``code`` is that status."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"the API server answered {code} {reason}: {message}")
        self.code = code
        self.reason = reason
        self.message = message


class Unreachable(FractileError):
    """No answer: connection refused, cut or timed out. The call may or may not have taken effect."""


class NotSent(Unreachable):
    """The call was not made: its time had come too late."""


class NotLeading(NotSent):
    """The call was not made, since another replica may lead."""


class SetupError(FractileError):
    """This machine lacks something; the text says what and how to get it."""
