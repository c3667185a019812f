"""The loop that updates: PaddleNLP's Trainer subclassed, optimizer, schedule, sampler, several processes.

It lies below the gate, which replays it, and may import `tasks` and what lies below. Begin with `trainer.py`.
"""
