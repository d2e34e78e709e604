"""The one error of the rehearsal layer."""


class RehearsalError(RuntimeError):
    """One sentence that says what cannot be rehearsed and what to do about it."""
