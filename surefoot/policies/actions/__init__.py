"""From an action space to a distribution, and from a drawn action to what the env accepts."""

from surefoot.policies.actions.build import build_actions
from surefoot.policies.actions.model import ActionModel

__all__ = ["ActionModel", "build_actions"]
