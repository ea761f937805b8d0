"""Log lines and metrics. This room only listens: others emit signals, here they are worded and counted."""
