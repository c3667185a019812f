"""Text classification. :mod:`.task` is the task, :mod:`.labels` the labeled texts that it is trained on."""
