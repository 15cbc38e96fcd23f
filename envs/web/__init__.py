"""The web world: real pages in a real browser. Start with `env.py`.

host.py         one browser per process, and the pool of its contexts
gateway.py      the network as pages see it: the sites of the episode, and nothing else
session.py      one episode's browser context: tabs, dialogs, downloads
tab.py          one page: looking at it and acting on it
env.py          palestra/Web-v0
miniwob.py      MiniWoB++ as a target
sites.py        any WSGI or ASGI application as a target, judged by its database
"""
