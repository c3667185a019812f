"""`report.html` of a run folder: training, metrics and errors of the run, on one page."""
