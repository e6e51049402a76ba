"""Every error edgedec raises on purpose.

EdgedecError
├── ConfigError            an option or a combination of options makes no sense
│   └── RefusedGrammarError what an output should follow is broken, or cannot be enforced
├── CheckpointError        a model file is broken, truncated or incomplete
├── UnsupportedModelError  a healthy file of a kind we have no recipe for
│   └── MissingStepError   a recipe needs a step that its reader does not have
├── BundleError            a bundle is broken, foreign or unsafe
└── SessionError           a request cannot be served (session closed, prompt empty)
    └── PromptTooLongError its prompt has more tokens than the context

The kernels stand alone and raise ValueError (shapes) and RuntimeError (no usable ISA).
Each message is one line: what was got, what was expected, what to do.
"""


class EdgedecError(Exception):
    """Base of all errors a caller may want to catch."""


class ConfigError(EdgedecError):
    """An option or a combination of options makes no sense."""


class RefusedGrammarError(ConfigError):
    """A schema, an expression or a grammar is broken, or cannot be enforced."""


class CheckpointError(EdgedecError):
    """A model file is broken, truncated or incomplete."""


class UnsupportedModelError(EdgedecError):
    """A healthy model file of a kind edgedec has no recipe for."""


class MissingStepError(UnsupportedModelError):
    """The recipe of a family needs a step that who reads it, such as a compiler, does not have."""


class BundleError(EdgedecError):
    """A bundle is broken, foreign or unsafe."""


class SessionError(EdgedecError):
    """A request cannot be served."""


LARGER_CONTEXT = "a larger --context: up to the bundle's own, or export with a larger one"
"""What a text needs that does not fit. Loading with more than the bundle's own is refused."""


class PromptTooLongError(SessionError):
    """A prompt has more tokens than the context.

    n_tokens: those of the prompt; of a text too long to be read to its end, fewer. count: the same
    in words. context: most that there may be.
    """

    def __init__(self, n_tokens: int, context: int, is_whole: bool = True) -> None:
        """is_whole: the whole prompt was counted."""
        self.count = f"{n_tokens} tokens" if is_whole else f"more than {n_tokens} tokens"
        super().__init__(
            f"the prompt has {self.count}, the context {context}: shorten the prompt, "
            f"or use {LARGER_CONTEXT}"
        )
        self.n_tokens = n_tokens
        self.context = context
