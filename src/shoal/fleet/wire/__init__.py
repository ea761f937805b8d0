"""The messages of the control plane, generated from `proto/control.proto` by `make proto`."""
