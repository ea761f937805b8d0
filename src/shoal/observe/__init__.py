"""Log lines and metrics, made from the signals that other packages emit."""
