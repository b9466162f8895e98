"""What a request is answered when something is wrong: a status, one sentence, no paths."""

from __future__ import annotations


class Problem(Exception):
    """An answer with an error. `kind` is one of OpenAI's types of errors."""

    def __init__(
        self, status: int, sentence: str, *, kind: str = "invalid_request_error", retry: int = 0
    ):
        super().__init__(sentence)
        self.status, self.sentence, self.kind, self.retry = status, sentence, kind, retry

    def body(self, shape: str = "") -> dict[str, object]:
        """As this server and OpenAI's clients have it, or (shape "tei") as TEI's."""
        if shape == "tei":
            kinds = {413: "Validation", 422: "Validation", 400: "Validation", 503: "Overloaded"}
            return {"error": self.sentence, "error_type": kinds.get(self.status, "Backend")}
        return {"error": {"message": self.sentence, "type": self.kind, "code": self.status}}


def busy() -> Problem:
    return Problem(503, "the server is busy; try again in a second", kind="server_error", retry=1)


def stopping() -> Problem:
    return Problem(503, "the server is stopping; try another one", kind="server_error", retry=5)


def too_slow(seconds: float) -> Problem:
    return Problem(504, f"not answered within {seconds:g} s; ask for less", kind="server_error")


def unknown(number: str) -> Problem:
    return Problem(500, f"an error of the server, number {number} in its log", kind="server_error")
