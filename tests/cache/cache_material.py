import json


class Json:
    """A codec of plain JSON."""

    def encode(self, value):
        return json.dumps(value).encode()

    def decode(self, data):
        return json.loads(data)
