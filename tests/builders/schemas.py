"""JSON schemas as the OpenAI front sends them."""

OPTIONS = "x-guidance"


def lenient(schema):
    """Return a schema that is kept to as far as it can be."""
    return {**schema, OPTIONS: {"lenient": True, **schema.get(OPTIONS, {})}}
