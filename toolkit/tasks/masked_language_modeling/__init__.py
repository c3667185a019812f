"""Masked language modeling: pretraining on texts without labels.

:mod:`.task` is the task, :mod:`.masking` cuts documents into blocks and masks them.
"""
