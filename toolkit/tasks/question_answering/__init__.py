"""Extractive question answering in SQuAD's form.

:mod:`.task` is the task, :mod:`.windows` cuts contexts into what the model reads, :mod:`.spans` turns its logits into
answers, :mod:`.squad` reads SQuAD files and scores answers.
"""

from toolkit.tasks.question_answering.task import (
    CORPORA as CORPORA,
)
from toolkit.tasks.question_answering.task import (
    DESCRIPTION as DESCRIPTION,
)
from toolkit.tasks.question_answering.task import (
    HEADS as HEADS,
)
from toolkit.tasks.question_answering.task import (
    LOWER_IS_BETTER as LOWER_IS_BETTER,
)
from toolkit.tasks.question_answering.task import (
    PREDICTS_FROM as PREDICTS_FROM,
)
from toolkit.tasks.question_answering.task import (
    check as check,
)
from toolkit.tasks.question_answering.task import (
    collate as collate,
)
from toolkit.tasks.question_answering.task import (
    compute_metrics as compute_metrics,
)
from toolkit.tasks.question_answering.task import (
    control_codes as control_codes,
)
from toolkit.tasks.question_answering.task import (
    load_splits as load_splits,
)
from toolkit.tasks.question_answering.task import (
    num_loss_terms as num_loss_terms,
)
from toolkit.tasks.question_answering.task import (
    outputs as outputs,
)
from toolkit.tasks.question_answering.task import (
    predict as predict,
)
from toolkit.tasks.question_answering.task import (
    prepare as prepare,
)
from toolkit.tasks.question_answering.task import (
    texts as texts,
)
from toolkit.tasks.question_answering.task import (
    write_artifacts as write_artifacts,
)
