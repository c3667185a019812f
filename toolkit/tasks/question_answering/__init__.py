"""Extractive question answering in SQuAD's form.

:mod:`.task` is the task, :mod:`.windows` cuts contexts into what the model reads, :mod:`.spans` turns its logits into
answers, :mod:`.squad` reads SQuAD files, :mod:`.scoring` scores answers.
"""
