from models import paddle_signals

paddle_signals.take_back()
