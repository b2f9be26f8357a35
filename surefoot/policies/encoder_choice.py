"""Which encoders a policy has: none, one for actor and critic each, or one of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from surefoot.errors import UsageError
from surefoot.policies.encoders import Encoder
from surefoot.policies.plans import needs_encoder
from surefoot.policies.privileged import divided
from surefoot.policies.user_encoder import CustomEncoder, EncoderClass

if TYPE_CHECKING:
    import torch

    from surefoot.policies.config import PolicyConfig
    from surefoot.spaces.layout import Layout

Make: TypeAlias = Callable[[], Encoder | CustomEncoder]


def encoder_makers(
    layout: Layout, config: PolicyConfig, own: EncoderClass | None, generator: torch.Generator | None
) -> tuple[Make, Make] | None:
    """What makes the actor's encoder, and the critic's; None if the row can be used as it is."""
    if config.own_encoder != (own is not None):
        raise UsageError(f"encoder={config.encoder}, but the class {own} was passed; give both or neither")
    if own is not None:
        make: Make = partial(CustomEncoder.make, own, layout, generator)
        return make, make
    chosen = partial(Encoder, layout, image_encoder=config.encoder, embedding_size=config.embedding_size)
    if config.critic_obs:  # the actor's leaves come first, because the kernels give it the first columns
        seen, hidden = divided(layout, config.critic_obs)
        both = partial(chosen, generator=generator, leaves=(*seen, *hidden))
        return partial(chosen, generator=generator, leaves=seen), both
    plain = partial(chosen, generator=generator)
    return (plain, plain) if needs_encoder(layout) else None
