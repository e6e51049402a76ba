"""Checkpoint to bundle, ahead of time: `pipeline.export(config.ExportConfig(...))`."""
