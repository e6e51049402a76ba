"""`edgedec serve`: models behind the HTTP interfaces that people's programs speak already.

``core`` has the one request that every interface is translated to, and the events that make up an
answer. ``api`` translates, without an engine. ``model_registry`` keeps models by name, ``running``
runs requests on them, ``web`` speaks HTTP.
"""
