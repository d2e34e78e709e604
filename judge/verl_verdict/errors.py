"""What a caller gets instead of a verdict."""


class CannotJudge(Exception):
    """The runs cannot be judged at all; the message is one sentence with the value, where it came from, and the cure."""
