"""Plain decoding with sub-layers left out. Its text is its own, not the whole model's."""

from __future__ import annotations

from edgedec.labs.methods.layer_policies import LayerPolicy, make_policy
from edgedec.models.errors import ConfigError
from edgedec.runtime.config.layers import LayersConfig
from edgedec.runtime.decoding.strategy import (
    TARGET,
    DecodeState,
    Decoding,
    DecodingStrategy,
    StepResult,
)
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sequences.passes import Pass, Passes
from edgedec.runtime.sequences.prefill import HiddenStates
from edgedec.runtime.sequences.token_tree import TokenTree


class LayerSkipping(DecodingStrategy):
    """Decoding by some layers of the target model."""

    is_lossless = False

    def __init__(self, setting: LayersConfig) -> None:
        self.name = str(setting)
        self._setting = setting

    def begin(self, state: DecodeState, hidden: HiddenStates) -> LayerSkippingDecoding:
        """Returns the part of a request.

        Raises:
            ConfigError: The graph cannot leave sub-layers out, or return the hidden states needed.
        """
        model = state.sequence.model
        if not model.capabilities.gates:
            raise ConfigError(
                "this bundle's graph cannot leave layers out: export the model again, as a fused "
                "graph"
            )
        n_asked, known = state.config.max_new_tokens, model.capabilities.hidden
        policy = make_policy(self._setting, model.n_layers, n_asked, known)
        return LayerSkippingDecoding(state, policy)


class LayerSkippingDecoding(Decoding):
    """One request, decoded by some layers. Its rows of the KV cache are nobody else's business."""

    def __init__(self, state: DecodeState, policy: LayerPolicy) -> None:
        self._state = state
        self._policy = policy
        self._n_run = self._n_gates = 0

    def step(self, noise: Noise) -> Passes[StepResult]:
        """Returns the next token."""
        state = self._state
        rows = state.take_rows()
        if rows is None:
            gates = self._policy.gates(len(state.tokens) - state.n_prompt - 1)
            rows = yield Pass(
                state.sequence,
                TokenTree.chain(state.tokens[-1:]),
                (0,),
                self._policy.hidden_layers if gates is None else (),
                with_logits=state.needs_logits,
                layer_gates=gates,
            )
            state.sequence.commit((0,), is_approximate=True)
            if gates is None:
                self._policy.learn(rows)
            self._count(gates or (True,) * 2 * state.sequence.model.n_layers)
        return StepResult((state.pick_from(rows, 0, noise),), (TARGET,))

    def end(self) -> None:
        self._state.sequence.rewind(self._state.sequence.n_exact)

    def explain(self) -> list[str]:
        """Returns how much ran."""
        if not self._n_gates:
            return []
        return [f"{self._n_run / self._n_gates:.0%} of attention and MLPs ran over new tokens"]

    def _count(self, gates: tuple[bool, ...]) -> None:
        self._state.stats.n_passes += 1
        self._state.stats.n_pass_tokens += 1
        self._n_run += sum(gates)
        self._n_gates += len(gates)


def make(setting: LayersConfig) -> LayerSkipping:
    """Returns the method of ``setting``."""
    return LayerSkipping(setting)
