"""The app: a server on this machine that explains what a browser, or any program, sends it.

`server` listens, `app` holds the routes, `guard` what every request must pass, `catalogue` the models that may be
named, `inputs` turns requests into raw inputs, `jobs` the queue and its one worker, `work` what a job does, `changes`
compares two runs. The page itself is in `static/` and uses nothing but the routes below /api.
"""
