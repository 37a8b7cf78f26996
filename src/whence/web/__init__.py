"""The app: a server on this machine that explains what a browser, or any program, sends it.

`server` listens, `app` holds the routes, `guard` the checks of every request, `catalogue` the models that requests may
name, `inputs` turns requests into raw inputs, `jobs` the queue and its one worker, `work` what a job does, `changes`
compares two runs. The page itself is in `static/` and uses nothing but the routes below /api.
"""
