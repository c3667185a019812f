"""`report.html` of a run folder: how it was trained, how good it became, where it errs, on one page."""
