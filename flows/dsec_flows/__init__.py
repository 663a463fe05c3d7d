"""What runs on the platform: flows for training now; serving, sweeps and capacity later."""
