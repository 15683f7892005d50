"""The settings of a router, each with its default, unit and allowed range; the only reader of the environment."""

from agentic_retriever.config.environment import PREFIX
from agentic_retriever.config.example import env_example
from agentic_retriever.config.pages import configuration_markdown
from agentic_retriever.config.router import RouterConfig
from agentic_retriever.config.values import Secret, Setting

__all__ = ["PREFIX", "RouterConfig", "Secret", "Setting", "configuration_markdown", "env_example"]
