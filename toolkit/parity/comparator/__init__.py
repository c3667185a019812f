"""Comparison of the port's tensors with the reference's, in a separate process without user code and frameworks.

The port's process sends messages (:mod:`toolkit.parity.exchange.handover`). This process measures them and writes the
port's ``result.json``. A :class:`.handler.MessageHandler` has a method for each kind of message. Nothing imports this
package: it is a separate program, as the two workers are. Begin with :mod:`.result`.
"""
