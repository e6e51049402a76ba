"""The next edit: what has to change elsewhere after what somebody has just changed.

with edgedec.load("coder.edgedec") as engine, EditPredictor(engine) as predictor:
    predictor.see(Document("def area(width):\\n    return width\\n", 0, "area.py"))
    edit = predictor.update(Document("def area(w):\\n    return width\\n", 10, "area.py")).result()
"""

from edgedec.autocomplete.edits.changes import Change, EditHistory
from edgedec.autocomplete.edits.edit import Edit, EditAnswer
from edgedec.autocomplete.edits.predictor import EditConfig, EditPredictor

__all__ = ["Change", "Edit", "EditAnswer", "EditConfig", "EditHistory", "EditPredictor"]
