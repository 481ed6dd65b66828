#!/usr/bin/env bash
# Expected: a schema's keywords hold together, and one that cannot be kept is refused, or warned of: as a
#   `required` name that `properties` does not list, `enum` beside `type`, `allOf` of two schemas.
# Happens: the required name is forgotten, and so is `type` beside `enum`, and nothing is said; of an `allOf` of
#   several nothing holds, any JSON is allowed, and a line on stderr says that support is under way. (What
#   stands beside a `$ref` or an `anyOf` is forgotten, too, which had been guessed.)
# Versions: xgrammar 0.2.9, jsonschema 4.26.0
# Source: JSON Schema 2020-12, Core, 10.2.1.1; Validation, 6.5.3
# Guess: missed ("any value under the required name; the others right")
. "$(dirname "$0")/lib.sh"
packages torch==2.13.0 transformers==5.23.0 apache-tvm-ffi==0.1.15.post2 pydantic==2.14.4 jsonschema==4.26.0
"$venv/bin/pip" install --quiet --no-deps xgrammar==0.2.9 2>/dev/null || exit 77
python <<'PY'
import json
import jsonschema, xgrammar
from xgrammar.testing import _is_grammar_accept_string

def allows(schema, text):
    return _is_grammar_accept_string(xgrammar.Grammar.from_json_schema(json.dumps(schema)), text)

listed = {"type": "object", "properties": {"b": {"type": "integer"}}}
whole, large = {"type": "integer"}, {"minimum": 5}
seen = []
for schema, text in (({**listed, "required": ["b"]}, "{}"), ({**listed, "required": ["a", "b"]}, '{"b": 1}'),
                     ({"type": "string", "enum": ["a", 1]}, "1"), ({**whole, **large}, "4"),
                     ({"allOf": [whole, large]}, "4"), ({"allOf": [whole, large]}, '"x"')):
    right = jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
    seen.append((right, allows(schema, text)))
    print(f"{json.dumps(schema)}, {text}: jsonschema {right}, xgrammar {seen[-1][1]}")
kept, wrong = (False, False), (False, True)
raise SystemExit(seen != [kept, wrong, wrong, kept, wrong, wrong])
PY
