"""Extractive question answering in SQuAD's form.

:mod:`.task` is the task. :mod:`.questions` checks the data, :mod:`.squad` reads SQuAD files, :mod:`.windows` cuts
contexts into what the model reads, :mod:`.preparation` prepares a split's, :mod:`.spans` turns logits into answers,
:mod:`.scoring` scores them, :mod:`.answering` asks a finished run.
"""
