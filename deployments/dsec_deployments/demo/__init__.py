"""`dsec demo`: the platform's promises, each checked on this machine while one watches."""
