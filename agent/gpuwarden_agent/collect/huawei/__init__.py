"""Huawei Ascend NPUs, by `npu-smi`."""
