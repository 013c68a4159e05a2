"""What a model is shown: prompts put together, recorded, and compacted when they no longer fit."""
