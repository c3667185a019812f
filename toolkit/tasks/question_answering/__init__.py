"""Extractive question answering in SQuAD's form.

:mod:`.task` is the task. :mod:`.questions` checks the data, :mod:`.squad` reads SQuAD files, :mod:`.windows` cuts
contexts into windows for the model, :mod:`.preparation` prepares the windows of a split, :mod:`.spans` turns logits
into answers, :mod:`.scoring` scores them, :mod:`.answering` answers questions with a finished run.
"""
