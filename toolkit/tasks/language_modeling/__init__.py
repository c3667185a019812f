"""Language modeling under control codes.

:mod:`.task` is the task, :mod:`.documents` packs text into blocks, :mod:`.decoding` has the decoding algorithms,
:mod:`.samples` writes generated text into the run folder.
"""
