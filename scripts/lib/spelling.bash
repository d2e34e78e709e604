# spelling: which known word a wrong one was probably meant to be, for error messages.
# shellcheck shell=bash

# spelling::nearest WORD CANDIDATE...: prints the candidate with the fewest edits to WORD (a letter added, dropped, replaced, or two
# neighbours swapped; ignores case) on stdout. Prints nothing if even that one needs more than a third of WORD's letters.
spelling::nearest() {
  ((${#1} <= 60)) || return 0 # no name is that long, and the time grows with the length
  LC_ALL=C awk '
    function distance(a, b,    i, j, cost, least) {
      for (i = 0; i <= length(a); i++) d[i, 0] = i
      for (j = 0; j <= length(b); j++) d[0, j] = j
      for (i = 1; i <= length(a); i++)
        for (j = 1; j <= length(b); j++) {
          cost = substr(a, i, 1) != substr(b, j, 1)
          least = d[i - 1, j - 1] + cost
          if (d[i - 1, j] + 1 < least) least = d[i - 1, j] + 1
          if (d[i, j - 1] + 1 < least) least = d[i, j - 1] + 1
          if (i > 1 && j > 1 && substr(a, i, 1) == substr(b, j - 1, 1) && substr(a, i - 1, 1) == substr(b, j, 1) &&
              d[i - 2, j - 2] + 1 < least) least = d[i - 2, j - 2] + 1
          d[i, j] = least
        }
      return d[length(a), length(b)]
    }
    BEGIN {
      word = tolower(ARGV[1])
      best = int(length(word) / 3)
      if (best < 1) best = 1
      for (n = 2; n < ARGC; n++) {
        edits = distance(word, tolower(ARGV[n]))
        if (edits < best || (edits == best && found == "")) { best = edits; found = ARGV[n] }
      }
      if (found != "") print found
    }' "$@"
}
