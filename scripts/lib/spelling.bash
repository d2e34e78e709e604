# spelling: which known word a wrong one was probably meant to be, for error messages.
# shellcheck shell=bash

# spelling::nearest WORD CANDIDATE...: prints the candidate that is most like WORD, whatever its case; nothing if none is, or without a Python.
spelling::nearest() {
  python3 -c '
import difflib, sys
word, known = sys.argv[1][:60].lower(), {each.lower(): each for each in reversed(sys.argv[2:])}
for near in difflib.get_close_matches(word, reversed(known), 1, 0.7):
    print(known[near])' "$@" 2>/dev/null || true
}
