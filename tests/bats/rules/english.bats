#!/usr/bin/env bats
# Plain English, the field's own words. CONTRIBUTING.md says how we write; these are the words that newcomers stumbled over.

setup() { load rules_helper; }

# english::words: the words, one a line, each with the one to write instead. A space is also the _ of a name.
english::words() {
  cat <<'WORDS'
anew                                                                    again
mend(s|ed|ing)?                                                         fix
blanks?                                                                 spaces
looked at                                                               checked
stands?|stood                                                           is
somebody|anybody                                                        the user
besides                                                                 also
aloud                                                                   in the log
told                                                                    reported, as_dict
(lines?|claims?|checks?|proofs?|rules?) (do(es)? not |all |still )?holds?   passes
holds? (true|for)                                                       applies, is true
(its|their|our|your|my|whose|next|job's|jobs') turns?                   slot
(waits?|waited|waiting) (for )?(a|its|their) (turn|place)s?             slot
turn (comes|came|is)                                                    slot
places? (in|of) (the|its|a) (queue|line)                                position
free places?|places? (that )?(is|are|becomes?|gets?) free               slot
(keeps?|loses?|takes?|gets?|leaves?) (a|its|their) places?              slot
WORDS
}

# english::found FILE...: lines with such a word, as FILE:LINE:TEXT. WITHOUT is the number of a word that is not searched for.
english::found() {
  local words
  words=$(english::words | sed -E "${WITHOUT:+${WITHOUT}d;}s/ {2,}.*//" | paste -sd '|')
  # A name is read as its words: test_is_made_anew.
  grep -HniIE -e "(^|[^a-z])(${words// /[ _]})([^a-z]|\$)" -- "$@" |
    grep -vE 'rule-ok: |[Ss]tands? (for|still|between|in for)|stood still|stand[-_]in|told_to_stop' || true
}

@test "docs, messages, comments and names use plain English" {
  rules::files
  # What jobs, sessions and verl wrote, in the words of their day; the READMEs beside it are ours.
  rules::leave_out '^tests/recorded/.*([^d]|[^m]d)$'
  rules::leave_out '^tests/bats/rules/english\.bats$' # the words themselves
  found=$(english::found "${FILES[@]}")
  [[ -z $found ]] || {
    printf '%s\n' "$found"
    return 1
  }
}

@test "the rule can fail: each word is found alone, a real exception is not" {
  local planted="${BATS_TEST_TMPDIR}/planted.md" page="${BATS_TEST_TMPDIR}/page.md" text number=0
  cat >"$planted" <<'PLANTED'
Submit it anew.
We mended the gap.
def test_a_name_with_blanks(): ...
13 jobs were looked at.
The worker stands idle.
Ask somebody.
It checks this besides.
The log says so aloud.
def told(self): ...
13 of 13 lines hold
The same holds for SFT.
A job waits until it is its turn.
waits_for_a_place
When the turn comes, it trains.
It lost its position: no place in the queue.
Two free places are taken.
Each job keeps its place.
PLANTED
  [[ $(wc -l <"$planted") == "$(english::words | wc -l)" ]]
  while read -r text; do # the word on the same line of the list finds it, and no other does
    printf '%s\n' "$text" >"$page"
    run english::found "$page"
    [[ $output == "${page}:1:${text}" ]]
    WITHOUT=$((++number)) run english::found "$page"
    [[ -z $output ]]
  done <"$planted"
  printf '%s\n' 'GRPO stands for a name' 'blanks # rule-ok: what the tokenizer calls them' 'job.read_state("ended")["told_to_stop"]' 'state/turn' \
    'Each process holds a lock.' 'Takes place on the head.' 'They take turns.' >"$page"
  run english::found "$page"
  [[ -z $output ]]
}
