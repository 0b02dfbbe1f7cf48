# SPDX-License-Identifier: Apache-2.0
"""Transformers' Cache of a batch whose K and V are at the daemon: a sequence for each row.

In: a step's input ids and padding mask. Out: the step's plan, and for `generate` how many columns
of the batch need no computing. Next: attention.py, once a layer.

Transformers counts columns of a padded batch; attnd counts a row's tokens. `valid` says which
columns are tokens; padding is never sent.
"""

from __future__ import annotations

import hashlib
import sys
import weakref
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from ...plan import Plan
from ...sequence import Sequence
from .model import refuse, served


class AttndLayer(CacheLayerMixin):
    """What Transformers asks of a layer; the cache answers. `update` marks the keys for attention.py."""

    is_sliding = False  # the daemon keeps all tokens
    is_croppable = True
    supports_early_init = False

    def __init__(self, cache: AttndCache, index: int) -> None:
        super().__init__()
        self._cache = weakref.ref(cache)  # no cycle: its sequences are closed as soon as it is dropped
        self.index = index
        self.is_initialized = True

    @property
    def cache(self) -> AttndCache:
        found = self._cache()
        assert found is not None
        return found

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        pass

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        key_states.attnd = self.cache  # type: ignore[attr-defined]
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        # Asked within a step, whose columns begin() has counted already.
        return self.cache.columns + (0 if self.cache.step is not None else query_length), 0

    def get_seq_length(self) -> int:
        return self.cache.get_seq_length()

    def get_max_length(self) -> int:
        return -1

    def offload(self) -> None:
        pass

    def prefetch(self) -> None:
        pass


class Step:
    """One forward pass: its plan, and which columns of [batch, q_length] are tokens (None: all)."""

    def __init__(
        self, plan: Plan, tokens: torch.Tensor | None, num_tokens: int, begin: int, holes: bool = False
    ) -> None:
        self.plan = plan
        self.tokens = tokens
        self.num_tokens = num_tokens
        self.begin = begin  # columns before it
        self.holes = holes  # some row has padding between its tokens
        self.ran = 0  # layers


class AttndCache(Cache):
    """Made by `generate` for models with `attn_implementation="attnd"`; make one yourself to go on with it later.

    `publish` False: nobody else sees what is computed here (hits are used all the same).
    """

    def __init__(self, model: Any, *, publish: bool = True) -> None:
        self.served = served(model)
        self._model = weakref.ref(model)
        self._begin_anew(publish)
        hook(model)

    def _begin_anew(self, publish: bool) -> None:
        super().__init__(layers=[AttndLayer(self, i) for i in range(self.served.num_layers)])
        self.publish = publish
        self.private = self.served.private  # it shares with nobody: ids do not tell what its tokens are
        self.rows: list[Sequence] = []
        self.firsts = np.zeros(0, np.int64)  # the position of each row's first token
        self.valid = np.zeros((0, 0), bool)  # [batch, columns]
        self.columns = 0
        self.step: Step | None = None
        self.cached = 0  # tokens of the batch that were found when it was opened

    def __deepcopy__(self, memo: dict[int, Any]) -> AttndCache:
        """Another cache that goes on from here: its rows are forks."""
        if self.step is not None:
            raise RuntimeError("a cache cannot be copied in the middle of a forward pass")
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        made.served, made._model = self.served, self._model
        made._begin_anew(self.publish)
        made.private, made.cached, made.columns = self.private, self.cached, self.columns
        made.valid, made.firsts = self.valid.copy(), self.firsts.copy()
        for row in self.rows:
            made.rows.append(row.fork())
        return made

    def __copy__(self) -> AttndCache:
        return self.__deepcopy__({})

    def __del__(self) -> None:
        rows = getattr(self, "rows", None)
        if rows and not self.served.connection.closed and not sys.is_finalizing():
            try:
                self.served.connection.close_sequences(rows)
            except OSError:
                pass  # the daemon has gone, and the sequences with it

    # ---- Transformers asks ----

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.columns if self.step is None else self.step.begin

    @property
    def batch_size(self) -> int:
        return len(self.rows) or -1

    def reset(self) -> None:
        self.served.connection.close_sequences(self.rows)
        self.rows, self.columns, self.valid = [], 0, np.zeros((0, 0), bool)
        self.private = self.served.private

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove > 0:  # the length to keep
            tokens_to_remove = max(self.columns - tokens_to_remove, 0)
        columns = self.columns - abs(tokens_to_remove)
        if columns == self.columns:
            return
        if columns <= 0:
            self.reset()
            return
        self.columns, self.valid = columns, self.valid[:, :columns]
        for row, length in zip(self.rows, self.valid.sum(1).tolist(), strict=True):
            if length < row.length:
                row.trim(length)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self._select(beam_idx.tolist())

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._select(np.arange(len(self.rows))[indices.cpu().numpy()].tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._select([i for i in range(len(self.rows)) for _ in range(repeats)])

    def _select(self, order: list[int]) -> None:
        """Rows by number; one that is named again is forked, one that is not is closed."""
        if order == list(range(len(self.rows))):
            return
        taken: set[int] = set()
        rows = []
        for i in order:
            rows.append(self.rows[i].fork() if i in taken else self.rows[i])
            taken.add(i)
        gone = [r for i, r in enumerate(self.rows) if i not in taken]
        self.rows, self.valid, self.firsts = rows, self.valid[order], self.firsts[order]
        self.served.connection.close_sequences(gone)

    # ---- A batch begins ----

    def open(self, ids: torch.Tensor | None, embeds: torch.Tensor | None, mask: torch.Tensor | None, match: bool) -> None:
        """Open a sequence for each row of a prompt; the columns that all rows have cached need no computing."""
        keys = _keys(ids, embeds)
        valid = _valid(mask, keys.shape)
        skip = keys.shape[1] - 1
        rows: list[Sequence] = []
        try:
            for tokens, row_valid in zip(keys, valid, strict=True):
                mine = tokens[row_valid]
                row = self._sequence(0, mine, None if match and not self.private else 0)
                rows.append(row)
                where = np.flatnonzero(row_valid)
                if row.cached < len(where):
                    skip = min(skip, int(where[row.cached]))
        except BaseException:
            self._close(rows)
            raise
        self.rows, self.firsts = rows, np.zeros(len(rows), np.int64)
        self.cached += sum(row.cached for row in rows)
        self.columns = max(skip, 0)
        self.valid = valid[:, : self.columns]
        for row, length in zip(self.rows, self.valid.sum(1).tolist(), strict=True):
            row.length = length  # a later start than what is held; the plan takes the rest over

    def _sequence(self, first: int, tokens: Any = (), max_match: int | None = 0) -> Sequence:
        namespace = self.served.unshared if self.private else self.served.shifted(first)
        return self.served.connection.sequence(tokens, namespace=namespace, max_match=max_match)

    def _close(self, rows: list[Sequence]) -> None:
        try:
            self.served.connection.close_sequences(rows)
        except OSError:
            pass  # the daemon has gone, and the sequences with it

    # ---- A step ----

    def begin(
        self,
        ids: torch.Tensor | None,
        embeds: torch.Tensor | None,
        mask: torch.Tensor | None,
        positions: torch.Tensor | None,
    ) -> None:
        """Plan a forward pass over these columns."""
        keys = _keys(ids, embeds)
        batch, width = keys.shape
        if self.rows and len(self.rows) != batch:
            raise ValueError(f"the cache has {len(self.rows)} rows, the input {batch}")
        valid = self._columns(mask, keys.shape)
        new = valid[:, self.columns :]
        counts = new.sum(1)
        used = np.flatnonzero(counts)
        if not len(used):
            raise ValueError("a step without any token: the attention mask is zero")
        self._place(new, positions)
        starts = np.array([r.length for r in self.rows], np.uint64)
        plan = self.served.cache.plan_arrays(
            np.array([self.rows[i].key for i in used], np.uint64),
            starts[used],
            counts[used],
            keys[new],
            None if self.publish and not self.private else np.zeros(len(used), np.uint64),
        )
        for i in used:
            self.rows[i].length += int(counts[i])
        tokens = None if new.all() else torch.from_numpy(new)
        self.step = Step(plan, tokens, int(counts.sum()), self.columns, has_holes(valid))
        self.valid = valid
        self.columns += width

    def _columns(self, mask: torch.Tensor | None, shape: tuple[int, ...]) -> np.ndarray:
        """Which columns are tokens, those of this step included; what went before is as it was."""
        batch, width = shape
        before = self.valid if self.rows else np.zeros((batch, 0), bool)
        if mask is None:
            return np.concatenate([before, np.ones(shape, bool)], 1)
        valid = _valid(mask, shape)
        if valid.shape != (batch, self.columns + width) or not np.array_equal(valid[:, : self.columns], before):
            raise refuse(
                "an attention mask other than that of the tokens before, and the new ones",
                "give the whole mask [batch, length], as it was",
            )
        return valid

    def _place(self, new: np.ndarray, positions: torch.Tensor | None) -> None:
        """A token's position is part of what it is in the cache: they run on from its row's first.

        Nothing has changed when they do not; a row that has no tokens may begin at any position.
        """
        batch, width = new.shape
        at = np.arange(self.columns, self.columns + width)[None] if positions is None else _positions(positions)
        if at.shape[1] != width or at.shape[0] not in (1, batch):
            raise refuse("position ids of another shape than the input's", "let generate make them")
        at = np.broadcast_to(at, new.shape)
        lengths = np.array([r.length for r in self.rows] or [0] * batch, np.int64)
        begins = new.any(1) & (lengths == 0)
        firsts = self.firsts.copy() if self.rows else np.zeros(batch, np.int64)
        firsts[begins] = at[np.arange(batch), new.argmax(1)][begins]
        if (new & (at != (firsts + lengths)[:, None] + new.cumsum(1) - 1)).any() or (firsts < 0).any():
            raise refuse(
                "position ids that jump",
                "give position_ids that count each row's tokens, or let generate make them",
            )
        if not self.rows:
            rows: list[Sequence] = []
            try:
                for first in firsts.tolist():
                    rows.append(self._sequence(first))
            except BaseException:
                self._close(rows)
                raise
            self.rows = rows
        else:
            for i in np.flatnonzero(begins & (firsts != self.firsts)).tolist():
                old, self.rows[i] = self.rows[i], self._sequence(int(firsts[i]))
                self._close([old])
        self.firsts = firsts

    def ran(self, index: int) -> None:
        """A layer's attention has run; the last one's ends the plan."""
        assert self.step is not None
        self.step.ran += 1
        if index == self.served.num_layers - 1:
            if self.step.ran != self.served.num_layers:
                raise RuntimeError(f"attention ran in {self.step.ran} of {self.served.num_layers} layers: {_OWN}")
            self.step = None

    def abandon(self) -> None:
        """The forward pass failed: as if it had not begun."""
        if self.step is None:
            return
        step, self.step = self.step, None
        self.columns, self.valid = step.begin, self.valid[:, : step.begin]
        for row, length in zip(self.rows, self.valid.sum(1).tolist(), strict=True):
            row.length = length
        try:
            step.plan.end()
        except OSError:
            pass  # it has ended already, or the daemon has

    def check(self, model: Any, extras: list[str]) -> None:
        """Before a step: that its K and V are known by the model's weights and the tokens' ids."""
        if self._model() is not model:
            raise refuse("a cache of another model", "make one with AttndCache(model)")
        if self.served.changed():
            raise refuse("weights that changed since the cache was made", "begin with a new AttndCache")
        if extras and not self.private:
            if self.rows:
                raise refuse(
                    f"{', '.join(extras)} after steps without them", "begin with a new AttndCache"
                )
            self.private = True


_OWN = "the model has an attention of its own beside Transformers' interface, use attn_implementation=\"eager\""


def has_holes(valid: np.ndarray) -> bool:
    """Whether some row has padding between its tokens."""
    if valid.all():
        return False
    ends = valid.shape[1] - valid[:, ::-1].argmax(1)
    return bool((valid.any(1) & (ends - valid.argmax(1) != valid.sum(1))).any())


def _positions(positions: torch.Tensor) -> np.ndarray:
    if positions.ndim != 2:
        raise refuse("position ids of several dimensions", 'use attn_implementation="sdpa"')
    return positions.cpu().numpy()


def counts_tokens(positions: torch.Tensor | None, mask: torch.Tensor | None) -> bool:
    """True if a token's position is the number of tokens before it in its row."""
    if positions is None:
        return True
    valid = torch.ones(positions.shape, dtype=torch.bool) if mask is None else mask > 0
    if positions.ndim != 2 or positions.shape[1] != valid.shape[1]:
        return False
    return bool(((positions == valid.cumsum(1) - 1) | ~valid).all())


def _valid(mask: torch.Tensor | None, shape: tuple[int, ...]) -> np.ndarray:
    if mask is None:
        return np.ones(shape, bool)
    if mask.ndim != 2:
        raise refuse("attention masks of more than two dimensions", "give the padding mask [batch, length]")
    return mask.cpu().numpy().astype(bool)


def _keys(ids: torch.Tensor | None, embeds: torch.Tensor | None) -> np.ndarray:
    """A 64-bit key of each token: its id, or a hash of its embedding."""
    if ids is not None:
        return ids.cpu().numpy().astype(np.int64, copy=False)
    assert embeds is not None
    flat = embeds.detach().contiguous().view(torch.uint8).cpu().numpy().reshape(-1, embeds.shape[-1] * embeds.element_size())
    hashes = [int.from_bytes(hashlib.blake2b(row.tobytes(), digest_size=8).digest(), "little", signed=True) for row in flat]
    return np.array(hashes, np.int64).reshape(embeds.shape[:2])


# ---- The model's forward ----


# What a forward pass is given that does not change K and V, or is part of the tokens' keys.
_KNOWN = frozenset(
    """input_ids inputs_embeds attention_mask position_ids cache_position past_key_values labels logits_to_keep
    num_items_in_batch""".split()
)


def beside_tokens(given: dict[str, Any]) -> list[str]:
    """Inputs that K and V may depend on beside token ids: images, token types. Whoever gives them shares with nobody."""
    return [
        name
        for name, value in given.items()
        if value is not None and name not in _KNOWN and not isinstance(value, (bool, int, float, str))
    ]


def hook(model: Any) -> None:
    """Every forward pass of the model with such a cache begins with a plan."""
    if getattr(model, "_attnd_hooked", False):
        return
    model._attnd_hooked = True
    model.register_forward_pre_hook(_before, with_kwargs=True)
    model.register_forward_hook(_after, with_kwargs=True, always_call=True)


def _before(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    cache = kwargs.get("past_key_values")
    if isinstance(cache, AttndCache):
        ids = args[0] if args else kwargs.get("input_ids")
        cache.abandon()
        cache.check(model, beside_tokens(kwargs))
        cache.begin(
            ids, kwargs.get("inputs_embeds"), kwargs.get("attention_mask"), kwargs.get("position_ids")
        )


def _after(_: Any, __: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    cache = kwargs.get("past_key_values")
    if isinstance(cache, AttndCache) and cache.step is not None:  # not after a whole pass
        cache.abandon()
        if output is not None:
            raise RuntimeError(f"the last layer's attention did not run: {_OWN}")
