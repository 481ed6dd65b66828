#!/usr/bin/env bash
# Expected: a schema whose `const` or `enum` is a key of 64 bits allows that number and no other.
# Happens: llguidance holds the numbers of a schema in FP64: the very number is refused, and the one that it
#   is rounded to, which the schema refuses, is the only answer. A `minimum` lets numbers below it through,
#   and the least of 64 bits as a `minimum` compiles at all no more.
# Versions: llguidance 1.9.1, jsonschema 4.26.0
# Source: JSON Schema 2020-12, Validation, 6.1 and 6.2; RFC 8259, section 6
# Guess: half missed ("const and enum are texts in a grammar, and so exact"; that bounds are rounded was right)
. "$(dirname "$0")/lib.sh"
packages llguidance==1.9.1 jsonschema==4.26.0
python <<'PY'
import json
import jsonschema, llguidance

bytes_alone = llguidance.LLTokenizer("byte")

def allows(schema, text):
    grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema))
    matcher = llguidance.LLMatcher(bytes_alone, grammar, log_level=0)
    if matcher.is_error():
        return "no grammar"
    tokens = bytes_alone.tokenize_str(text)
    return matcher.validate_tokens(tokens) == len(tokens) and matcher.consume_tokens(tokens) and matcher.is_accepting()

key, rounded = 1234567890123456789, 1234567890123456768
seen = []
for schema in ({"const": key}, {"enum": [1, key]}, {"type": "integer", "minimum": key, "maximum": key + 500},
               {"type": "integer", "minimum": -(2**63)}):
    for number in (key, rounded):
        right = jsonschema.Draft202012Validator(schema).is_valid(number)
        seen.append((right, allows(schema, str(number))))
        print(f"{json.dumps(schema)} allows {number}: jsonschema {right}, llguidance {seen[-1][1]}")
wrong = (True, False), (False, True)
raise SystemExit(seen != [*wrong, *wrong, (True, True), (False, True), *((True, "no grammar"),) * 2])
PY
