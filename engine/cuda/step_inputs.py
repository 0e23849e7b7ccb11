"""What a decode step is told from the host, in one small copy that nothing waits for."""

import torch

_BUFFERS = 8  # pinned ones: so many copies may be under way


class StepInputs:
    """Fixed tensors on the device that recorded kernels read; `send` fills them.

    One int64 tensor of 4: the token, the slot, and as int32 the length and two budgets.
    """

    def __init__(self, device: torch.device) -> None:
        self._all = torch.zeros(4, dtype=torch.int64, device=device)
        self._on_card = device.type == "cuda"
        self._hosts = [torch.zeros(4, dtype=torch.int64, pin_memory=self._on_card) for _ in range(_BUFFERS)]
        self._sent: list[torch.cuda.Event | None] = [None] * _BUFFERS
        self._next = 0

    @property
    def token(self) -> torch.Tensor:
        """int64 [1]; negative for the token that the last step chose."""
        return self._all[0:1]

    @property
    def slot(self) -> torch.Tensor:
        """int64 [1]: where the token's KV goes."""
        return self._all[1:2]

    @property
    def length(self) -> torch.Tensor:
        """int32 [1]: tokens of the sequence with the new one."""
        return self._small(0)

    @property
    def budgets(self) -> tuple[torch.Tensor, torch.Tensor]:
        """int32 [1] each, in KV pages: of the first layers and of the others."""
        return self._small(1), self._small(2)

    def send(self, token: int | None, slot: int, length: int, budgets: tuple[int, int]) -> None:
        host, sent = self._hosts[self._next], self._sent[self._next]
        if sent is not None:
            sent.synchronize()  # a buffer must not change while it is being copied
        host[0], host[1] = -1 if token is None else token, slot
        small = host.view(torch.int32)
        small[4], small[5], small[6] = length, *budgets
        self._all.copy_(host, non_blocking=True)
        if self._on_card:
            event = self._sent[self._next] or torch.cuda.Event()
            event.record()
            self._sent[self._next] = event
        self._next = (self._next + 1) % _BUFFERS

    def _small(self, place: int) -> torch.Tensor:
        return self._all.view(torch.int32)[4 + place : 5 + place]
