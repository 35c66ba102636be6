"""Errors of the Dynamo backend."""


class NEFFCompilationError(RuntimeError):
    """A graph could not be made into a program."""


class NEFFExecutionError(RuntimeError):
    """A compiled graph could not be run."""
