"""The engine: from token ids to token ids. Loads a model, keeps the KV of conversations, generates.

`Engine.generate` is one turn: find the longest prefix whose KV exists, prefill the rest in chunks, decode. One turn at
a time, from one thread; a turn may be suspended at any event, and `export` may be called meanwhile.
"""

import hashlib
import json
import threading
import time
from array import array
from collections.abc import Callable, Container, Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager

import torch

from engine.attention import AttentionPlan
from engine.cache import PAGE, KvCache, Sequence
from engine.chat_template import ChatTemplate
from engine.config import EngineConfig, Sampling
from engine.conversations import Conversations
from engine.decode import decode_token
from engine.errors import DoesNotFitError, EngineError
from engine.events import Event, Score
from engine.evidence import PageMass, retrieval_weights
from engine.gates.format import GatesMissingError, check_gates
from engine.kv_memory import bytes_per_token
from engine.load import LoadedModel, load_model
from engine.patterns import AttentionPolicy, named_pattern, streaming_heads, tail_start
from engine.patterns.registry import MODES
from engine.prefix import Blocks
from engine.snapshot import SnapshotBlock, SnapshotCheckpoint, SnapshotReader, block_pages, export_rows
from engine.tokenizer import Tokenizer
from engine.turn import Turn
from engine.two_pools import TwoPoolCache

KERNEL_VERSION = 5  # raise it when the same tokens get other KV


class Engine:
    """A loaded model and the KV of its conversations. Made by `Engine.load`; use as a context manager or `close` it.

    `before_unload(conversation)`: set it to be told when a conversation is about to leave memory because another one
    needs it; `export` may be called then.
    `decode_logit_error`: RMS of (packed - dense logits) / RMS of dense logits, one decode step, measured at loading;
    0.0 where decode uses the dense weights. `decode_weights`: what was chosen, `decode_reason`: why.
    """

    def __init__(self, config: EngineConfig, loaded: LoadedModel) -> None:
        self.config = config
        self.model = loaded.decoder.config
        if config.gates is not None:
            check_gates(config.gates, self.model.layers, self.model.kv_heads)
        self.tokenizer: Tokenizer = loaded.tokenizer
        self.chat_template: ChatTemplate = loaded.chat_template
        self.profile = loaded.profile
        self.context = loaded.context
        self.kv_format = config.kv_format
        self.kv_bytes_per_token = bytes_per_token(
            self.model,
            config.kv_format,
            loaded.scorers,
            loaded.cache.memory.heads,
            wide=config.wide_key_layers,
        )
        self.kv_capacity_tokens = loaded.capacity
        self.prefill_chunk = loaded.chunk
        self.parameters = loaded.parameters
        self.decode_weights = loaded.decode_weights
        self.decode_reason = loaded.decode_reason
        self.decode_logit_error = loaded.decode_logit_error
        self.device_name = loaded.device_name
        self.fingerprint = _fingerprint(config, loaded)
        self.decoder = loaded.decoder
        self.cache: KvCache = loaded.cache
        self.graphs = loaded.graphs
        self.before_unload: Callable[[str], None] | None = None
        self.conversations = Conversations(self.cache, self._leaves)
        two_pools = isinstance(self.cache, TwoPoolCache)
        self.blocks = Blocks(block_pages(self.kv_bytes_per_token), self.cache.packs, two_pools)
        self._policies: dict[str, AttentionPolicy] = {}
        self._evidence_weights = None if two_pools else retrieval_weights(config, self.cache.device)
        self._busy = False

    @classmethod
    def load(cls, config: EngineConfig, progress: Callable[[str, float], None] | None = None) -> "Engine":
        """Read the model and make room for its KV. `progress(step, share)` is called as it goes.

        Raises ModelFileError, UnsupportedModelError, DoesNotFitError or ValueError (a setting that cannot be).
        """
        return cls(config, load_model(config, progress or (lambda step, share: None)))

    @property
    def largest_prompt(self) -> int:
        """Tokens that prompt and answer together may have: the context, or less where memory holds less."""
        return min(self.context, self.kv_capacity_tokens)

    def generate(
        self,
        ids: SequenceOf[int],
        sampling: Sampling | None = None,
        *,
        conversation: str = "",
        cancel: threading.Event | None = None,
        checkpoints: SequenceOf[int] = (),
        snapshots: SnapshotReader | None = None,
        mode: str = "exact",
        reading: str = "exact",
        question: int | None = None,
    ) -> Iterator[Event]:
        """One turn -> its events (see engine.events), computed as they are asked for.

        `ids`: the whole prompt. `conversation`: under which name its KV stays in memory. `cancel`: when set, the turn
        ends within 300 ms. `checkpoints`: token positions at which prefill stops once. `snapshots`: stored prefixes.
        `mode`: how the answer attends, exact, balanced, fast or a pattern's name; `reading`: how the prompt does, which
        shapes its KV and so belongs to the conversation. `question`: where the question's own tokens begin, which read
        everything; by default behind the last checkpoint, at most 512 before the end.
        Raises at once: DoesNotFitError (prompt and answer do not fit; nothing is cut), PatternError, ValueError.
        """
        started = time.perf_counter()
        sampling = sampling or Sampling()
        self._check(ids, sampling)
        tail = tail_start(len(ids), max(checkpoints, default=0)) if question is None else question
        evidence = PageMass(self._evidence_weights) if self.config.evidence else None
        plan = AttentionPlan(self.policy(reading), self.policy(mode), tail, evidence=evidence)
        prompt = array("i", ids)
        return self._run(Turn(self, prompt, sampling, conversation, cancel, checkpoints, snapshots, plan, started))

    def score(
        self,
        ids: SequenceOf[int],
        continuation: SequenceOf[int],
        *,
        conversation: str = "",
        mode: str = "exact",
        reading: str = "exact",
        question: int | None = None,
    ) -> Score:
        """How likely the model finds `continuation` after the prompt `ids`, one decode step for each of its tokens.

        Arguments, re-use and errors are those of `generate`.
        """
        if not continuation:
            raise ValueError("continuation: got no token, need at least 1")
        self._check([*ids, *continuation], Sampling(max_tokens=1))
        tail = tail_start(len(ids)) if question is None else question
        plan = AttentionPlan(self.policy(reading), self.policy(mode), tail)
        sampling = Sampling(max_tokens=len(continuation))
        turn = Turn(self, array("i", ids), sampling, conversation, None, (), None, plan, time.perf_counter())
        with self._alone(turn):
            return turn.score(continuation)

    def policy(self, mode: str) -> AttentionPolicy:
        """The attention policy of a mode or named pattern. PatternError if there is none of this name;
        GatesMissingError, a ValueError, if a share of KV heads is to stream and there are no gates to choose by."""
        named = None if mode in MODES else named_pattern(mode)
        if mode not in self._policies or self._policies[mode].named is not named:
            streaming = None if mode == "exact" else self._streaming_heads()
            self._policies[mode] = AttentionPolicy(mode, self.config.sparsity, self.model.layers, streaming)
        return self._policies[mode]

    def _streaming_heads(self) -> torch.Tensor | None:
        """bool [layers, kv_heads] by the gates; None without gates."""
        gates, ratio = self.config.gates, self.config.sparsity.streaming_ratio
        if gates is not None:
            return streaming_heads(torch.tensor(gates, device=self.cache.device), ratio)
        if ratio:
            raise GatesMissingError(ratio)
        return None

    def decode(self, sequence: Sequence, token: int, poll: Callable[[], None], plan: AttentionPlan) -> torch.Tensor:
        """One decode step of a prepared sequence -> logits float32 [vocab], valid until the next one."""
        if self.graphs is not None and self.graphs.refusal(plan) is None:
            poll()
            return self.graphs.step(sequence, token, plan)
        return decode_token(self.decoder, self.cache, sequence, token, poll, plan)

    def _check(self, ids: SequenceOf[int], sampling: Sampling) -> None:
        if not ids:
            raise ValueError("ids: got no token, need at least 1")
        if min(ids) < 0 or max(ids) >= self.model.vocab_size:
            raise ValueError(f"ids: got {min(ids)} to {max(ids)}, need 0 to {self.model.vocab_size - 1}")
        needed, available = len(ids) + sampling.max_tokens, self.largest_prompt
        if needed > available:
            limit = "context" if self.context <= self.kv_capacity_tokens else "memory for its KV"
            raise DoesNotFitError(
                f"The prompt has {len(ids)} tokens and the answer may have {sampling.max_tokens}, "
                f"but the model's {limit} holds {available}.",
                "Choose fewer pages, or ask for a shorter answer.",
                needed_tokens=needed,
                available_tokens=available,
            )

    def _run(self, turn: Turn) -> Iterator[Event]:
        with self._alone(turn):
            yield from turn.run()

    @contextmanager
    def _alone(self, turn: Turn) -> Iterator[None]:
        if self._busy:
            raise EngineError("The engine is already generating.", "Wait for the answer, or stop it.")
        self._busy = True
        try:
            yield
        finally:
            turn.finish()
            self._busy = False

    def export(
        self, conversation: str, tokens: int, known: Container[str] = ()
    ) -> Iterator[SnapshotBlock | SnapshotCheckpoint]:
        """The rows that restore the first `tokens` tokens of a conversation, without those whose key is `known`.

        Where old pages are packed, or some heads keep a window only, an earlier state is exact only if it was a
        checkpoint: then the longest kept state within `tokens` is exported. Nothing is yielded for a conversation that
        is not in memory.
        """
        found = self.conversations.get(conversation)
        if found is None:
            return
        state = next((s for s in found.states() if s.length == tokens), None)
        copy: Sequence | None = None
        if state is None and not (self.blocks.packs or self.blocks.exact_only) and found.live.length > tokens:
            state = copy = self.cache.fork(found.live, tokens)
        if state is None:
            state = max((s for s in found.states() if s.length <= tokens), key=lambda s: s.length, default=None)
        if state is None or state.length == 0:
            return
        try:
            yield from export_rows(self.cache, state, self.fingerprint, self.blocks.pages, known)
        finally:
            if copy is not None:
                self.cache.free(copy)

    def live_tokens(self, conversation: str) -> int:
        """Tokens of a conversation whose KV is in memory: what `export` can write after a turn."""
        found = self.conversations.get(conversation)
        return found.live.length if found else 0

    def kept_tokens(self, conversation: str) -> list[int]:
        """Of a conversation in memory: the lengths of the states that were asked for, and of the newest one."""
        found = self.conversations.get(conversation)
        if found is None:
            return []
        asked = {mark.length for mark in found.marks if mark.length in found.pinned}
        return sorted((asked | {found.live.length}) - {0})

    def _leaves(self, conversation: str) -> None:
        if self.before_unload is not None:
            self.before_unload(conversation)

    def unload(self, conversation: str) -> None:
        """Free a conversation's KV pages."""
        self.conversations.unload(conversation)

    def close(self) -> None:
        """Free all KV and weights. The engine cannot be used afterwards."""
        self.__dict__.pop("graphs", None)
        self.__dict__.pop("decoder", None)
        self.__dict__.pop("cache", None)
        self.__dict__.pop("conversations", None)

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _fingerprint(config: EngineConfig, loaded: LoadedModel) -> str:
    """Hex digest of everything that the bytes of a KV page depend on besides its token ids."""
    rope, cache = loaded.decoder.rope, loaded.cache
    split = cache.split if isinstance(cache, TwoPoolCache) else None
    facts = {
        "weights": loaded.source_fingerprint,
        "kv_format": cache.format,
        "rope": hashlib.sha256(rope.inv_freq.cpu().numpy().tobytes()).hexdigest(),
        "rope_amplitude": rope.amplitude,
        "chunk": loaded.chunk,
        "page": PAGE,
        "decode_weights": loaded.decode_weights,
        "dtype": str(loaded.decoder.embed.dtype),
        "device": torch.device(loaded.profile.device).type,
        "kernels": [KERNEL_VERSION, loaded.profile.kernels],
        "scorers": sorted(scorer.key for scorer in loaded.scorers),
    }
    if split is not None:
        facts |= {"streaming": split.streaming.tolist(), "local": split.local}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
