"""AWS Trainium and Inferentia, by `neuron-monitor` and `neuron-ls`."""
