"""Text classification. :mod:`.task` is the task, :mod:`.labels` the labelled texts that it is trained on."""
