"""Base class of the classes that measure messages, with one method for each kind of message.

Example::

    class Ledger(MessageHandler):
        @handles("held")
        def _compare(self, message: Message, content: None) -> None: ...
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from toolkit.parity.exchange.handover import Message
from toolkit.parity.exchange.messages import CONTENT
from toolkit.parity.exchange.records import from_json

#: Method that handles a message: it gets the message and its decoded content.
Method = TypeVar("Method", bound=Callable[..., None])


def handles(*kinds: str) -> Callable[[Method], Method]:
    """Return a decorator for the method of a :class:`MessageHandler` that handles messages of some kinds.

    Args:
        kinds: kinds of messages, keys of :data:`toolkit.parity.exchange.messages.CONTENT`.

    Raises:
        ValueError: a kind does not exist.
    """
    if unknown_kinds := set(kinds) - CONTENT.keys():
        raise ValueError(f"no such kinds of messages: {', '.join(sorted(unknown_kinds))}")

    def mark(method: Method) -> Method:
        """Mark the method with the kinds of messages, and return it."""
        method.message_kinds = kinds  # type: ignore[attr-defined]
        return method

    return mark


class MessageHandler:
    """Base class of everything that measures messages. Subclasses mark their methods with :func:`handles`."""

    #: Kind of message -> name of the method that handles it.
    _method_names: ClassVar[dict[str, str]] = {}

    def __init_subclass__(cls) -> None:
        """Collect the marked methods of a subclass, in addition to its base class's methods."""
        own_methods = {kind: name for name, value in vars(cls).items() for kind in getattr(value, "message_kinds", ())}
        cls._method_names = {**cls._method_names, **own_methods}

    @classmethod
    def can_handle(cls, kind: str) -> bool:
        """Return whether the class has a method for messages of this kind.

        Args:
            kind: kind of message, the part of its header that selects the method.
        """
        return kind in cls._method_names

    def handle(self, message: Message) -> None:
        """Call the method for the message's kind, with the message and its decoded content.

        The content has the type of the kind in :data:`toolkit.parity.exchange.messages.CONTENT`.

        Args:
            message: message of the port's process.

        Raises:
            ValueError: the class has no method for the kind, or the content is not of its type.
        """
        if not self.can_handle(message.kind):
            raise ValueError(f"{type(self).__name__}: no method for a message of kind {message.kind!r}")
        content_type: Any = CONTENT[message.kind]
        content = None if content_type is None else from_json(content_type, message.content, message.kind)
        getattr(self, self._method_names[message.kind])(message, content)
