# typed: what was typed on make's command line must be read by one of the targets that were typed with it, or the command is not the one that
# was meant. env/defaults.env says which targets read a knob. The environment and env/local.env are for all commands, and nothing is said of
# what they have.
# shellcheck shell=bash

# typed::check: refuses a knob of make's command line that none of its targets reads.
typed::check() {
  local knob targets=()
  [[ -n ${MAKE_GIVEN-} && -n ${MAKE_GOALS-} ]] || return 0
  knob::read
  env::read_local # a condition may be about what it sets
  mapfile -t targets < <(typed::targets "$MAKE_GOALS" && typed::_of_batch_job)
  for knob in $MAKE_GIVEN; do
    [[ ! -v KNOB_READERS[$knob] ]] || typed::is_read "$knob" "${targets[@]}" || typed::_refuse "$knob" "${targets[@]}"
  done
}

# typed::targets GOALS: these targets of make, and those that the Makefile runs before them.
typed::targets() {
  awk -v goals="$1" '
    /^\.?[a-z][a-z-]*:( |$)/ && !/:=/ { target = $1; sub(/:$/, "", target); sub(/ *##.*/, ""); sub(/^[^:]*: */, ""); before[target] = $0 }
    function add(target, words, number, i) {
      if (target in seen) return
      seen[target]
      print target
      number = split(before[target], words, " ")
      for (i = 1; i <= number; i++) add(words[i])
    }
    END { number = split(goals, words, " "); for (i = 1; i <= number; i++) add(words[i]) }' "${REPO_DIR}/Makefile"
}

# typed::_of_batch_job: the targets that run in the batch job of Slurm, if one was typed.
typed::_of_batch_job() {
  case " ${MAKE_GOALS} $(typed::_value TO) " in
    *' slurm '*) typed::targets "$(batch::goals "$(typed::_value BATCH_DO)") down" ;;
  esac
}

# typed::is_read KNOB TARGET...: one of these targets reads it, as the other knobs are.
typed::is_read() {
  local reader target
  # shellcheck disable=SC2086  # words, one each
  for reader in ${KNOB_READERS[$1]}; do
    for target in "${@:2}"; do
      [[ $target == "${reader%%\[*}" || $reader == all && $target != @(help|test|version|dist) ]] || continue
      ! typed::_holds "$reader" || return 0
    done
  done
  return 1
}

# typed::_holds READER: the condition of "TARGET[KNOB=VALUE]"; without one it holds.
typed::_holds() {
  local condition=${1#*\[}
  [[ $1 == *\[* ]] || return 0
  condition=${condition%]}
  [[ $(typed::_value "${condition%%=*}") == "${condition#*=}" ]]
}

# typed::_value KNOB: its value, as far as it is read by now, or its default; a boolean as 1 or nothing.
typed::_value() {
  local value=${!1-${KNOB_DEFAULT[$1]}}
  [[ ${KNOB_TYPE[$1]} != boolean || ! ${value,,} =~ ^(1|true|yes|on)$ ]] || value=1
  printf '%s\n' "$value"
}

# typed::_refuse KNOB TARGET...: says which command would read it.
typed::_refuse() {
  local knob=$1 reader target condition='' others='' said
  shift
  # An address may have a password.
  said="${knob}='$(cli::shown "${!knob}" | sed 's,://[^/]*@,://…@,')' (on make's command line) is not read by 'make ${MAKE_GOALS}'"
  for target; do
    [[ ! -v KNOB_INSTEAD["${target} ${knob}"] ]] || cli::die 2 "${said}: ${KNOB_INSTEAD["${target} ${knob}"]}."
  done
  # shellcheck disable=SC2086  # words, one each
  for reader in ${KNOB_READERS[$knob]}; do
    others+="${others:+, }${reader%%\[*}"
    [[ $reader != *\[* || " $* " != *" ${reader%%\[*} "* ]] || condition=${reader#*\[}
  done
  condition=${condition%]}
  case $condition in
    '') ;;
    *=) cli::die 2 "${said} together with ${condition%=}: leave one of the two out." ;;
    *) cli::die 2 "${said} without ${condition}: give that, too, or leave ${knob} out." ;;
  esac
  [[ $others != all ]] || cli::die 2 "${said}: leave it out."
  cli::die 2 "${said}: leave it out; it is for make ${others}."
}
