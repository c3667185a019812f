"""What the processes of a gate exchange: the job folder, tensors on disk, messages and results."""
