# knob: what env/defaults.env says about each knob: its name, its default and its type. All scripts check all values here.
# shellcheck shell=bash

declare -ga KNOB_NAMES=()
declare -gA KNOB_TYPE=() KNOB_DEFAULT=()
# The targets of make that read each knob, and by "TARGET KNOB" what to do instead where one of them is not that.
declare -gA KNOB_READERS=() KNOB_INSTEAD=()

# knob::read: reads env/defaults.env: above each KEY=DEFAULT is its tag, "#: TYPE[, typed], for TARGET...", and above that may be lines
# "#- TARGET...: what to do instead". The Makefile reads ", typed".
knob::read() {
  local line name type='' readers='' instead=()
  ((${#KNOB_NAMES[@]} == 0)) || return 0
  while IFS= read -r line; do
    case $line in
      '#- '*) instead+=("${line#'#- '}") ;;
      '#: '*) type=${line#'#: '} readers=${type##*, for } type=${type%, for *} type=${type%, typed} ;;
      '#'* | '') ;;
      *)
        name=${line%%=*}
        KNOB_NAMES+=("$name")
        # shellcheck disable=SC2034  # env.bash and typed.bash read them
        KNOB_TYPE[$name]=$type KNOB_DEFAULT[$name]=${line#*=} KNOB_READERS[$name]=$readers
        ((${#instead[@]} == 0)) || knob::_read_instead "$name" "${instead[@]}"
        type='' readers='' instead=()
        ;;
    esac
  done <"${REPO_DIR}/env/defaults.env"
}

# knob::_read_instead NAME LINE...: lines "TARGET...: what to do instead".
knob::_read_instead() {
  local line target
  for line in "${@:2}"; do
    # shellcheck disable=SC2034  # typed.bash reads it
    for target in ${line%%: *}; do KNOB_INSTEAD["${target} $1"]=${line#*: }; done
  done
}

# knob::refuse_name NAME WHERE: for a name that is not a knob.
knob::refuse_name() {
  local nearest use=use
  [[ $(<"${REPO_DIR}/env/rocm.env") != *$'\n'"export $1="* ]] ||
    cli::die 2 "$1 ($2) is no longer a knob: the workers get it from a line 'export $1=…' in env/local.env."
  nearest=$(spelling::nearest "$1" "${KNOB_NAMES[@]}")
  [[ -z $nearest ]] || use=Use
  cli::die 2 "$(cli::shown "$1") ($2) is not a knob: ${nearest:+did you mean ${nearest}? }${use} the knobs of env/defaults.env; export other variables, such as secrets, before you run the command."
}

# knob::check NAME...: refuses a value that is not of its knob's type. From here on a boolean is 1 or empty, however it was written.
knob::check() {
  local name
  for name in "$@"; do
    knob::is_usable "$name" ||
      cli::die 2 "${name}='$(cli::shown "${!name}")' (from ${ENV_ORIGIN[$name]}) is not usable: $(knob::cure "$name")."
    [[ ${KNOB_TYPE[$name]} != boolean ]] || case ${!name,,} in
      1 | true | yes | on) declare -g "${name}=1" ;;
      *) declare -g "${name}=" ;;
    esac
  done
}

# knob::is_usable NAME: its value is of its type.
knob::is_usable() { knob::has_type "${KNOB_TYPE[$1]}" "${!1}"; }

# knob::has_type TYPE VALUE. In the C locale [a-z] and {0,39} match bytes, as written.
knob::has_type() {
  local LC_ALL=C type=${1% or empty} value=$2 range choices=()
  [[ $type == "$1" || -n $value ]] || return 0
  case $type in
    free) ;;
    path | file) [[ -n $value ]] ;;
    boolean) [[ ${value,,} =~ ^(1|true|yes|on|0|false|no|off|)$ ]] ;;
    'whole '*)
      range=${type#whole }
      [[ $value =~ ^(0|-?[1-9][0-9]{0,14})$ ]] && ((value >= ${range%..*} && value <= ${range#*..}))
      ;;
    'such as '*' matching '*) [[ $value =~ ^(${type#* matching })$ ]] ;;
    'one of '*)
      knob::_read_choices "$type"
      knob::_is_choice "$value"
      ;;
    'list of '*)
      knob::_read_choices "$type"
      [[ -z $(knob::_first_stranger "$value") ]]
      ;;
    *) cli::die 1 "env/defaults.env has the type '${type}', which scripts/lib/knob.bash does not know: use one that it does." ;;
  esac
}

# knob::_read_choices TYPE: puts the words of the type into the caller's array `choices`. jobspecs/*.yaml means the names of these files.
knob::_read_choices() {
  local word
  # shellcheck disable=SC2086  # words, one each, and files of this checkout
  for word in ${1#* of }; do
    [[ $word != */* ]] || { word=${word##*/} && word=${word%.*}; }
    [[ $word == defaults || $word == local ]] || choices+=("$word")
  done
}

# knob::_is_choice VALUE: it is one of `choices`; … in a choice stands for any text, and CODE_ID for a code id.
knob::_is_choice() {
  local choice
  for choice in "${choices[@]}"; do
    # shellcheck disable=SC2053  # a pattern
    case $choice in
      CODE_ID) [[ ! $1 =~ ^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$ ]] || return 0 ;;
      *) [[ $1 != ${choice//…/?*} ]] || return 0 ;;
    esac
  done
  return 1
}

# knob::_first_stranger VALUE: the first of its words, separated by commas or spaces, that is not one of `choices`.
knob::_first_stranger() {
  local word words=()
  mapfile -t words < <(tr ' ' , <<<"${1//, /,}" | tr , '\n')
  for word in "${words[@]}"; do
    knob::_is_choice "$word" || { printf '%s\n' "${word:-,}" && return; }
  done
}

# knob::as_json: each knob that is not empty, or that the user set, with where its value came from, for the helper (base/knobs.py). The
# addresses of an index and of repositories are left out, because they may have a password; CODE_ID names the snapshot that was made.
knob::as_json() {
  local name value all=''
  for name in "${KNOB_NAMES[@]}"; do
    value=${!name-}
    [[ -n $value ]] || env::is_given "$name" || continue
    [[ ${KNOB_TYPE[$name]} != *://* && ${KNOB_TYPE[$name]} != *git:* ]] || continue
    value=${value//\\/\\\\} value=${value//\"/\\\"}
    all+=",\"${name}\":[\"${value}\",\"${ENV_ORIGIN[$name]}\"]"
  done
  printf '{%s}' "${all#,}"
}

# knob::cure NAME: what to use instead of its value, as part of a sentence.
knob::cure() {
  local type=${KNOB_TYPE[$1]} value=${!1} range list='' nearest='' choices=() cure
  range=${type#whole } range=${range% or empty}
  [[ $type != *' of '* ]] || knob::_read_choices "${type% or empty}"
  ((${#choices[@]} == 0)) || list=$(printf '%s, ' "${choices[@]}")
  case $type in
    boolean) cure='use 1, true, yes or on, or 0, false, no, off or nothing' ;;
    'whole '*) cure="use a whole number from ${range%..*} to ${range#*..}" ;;
    'such as '*) cure="use a value ${type%% matching *}" ;;
    'list of '*)
      cure="use some of ${list%, }, separated by commas"
      nearest=$(spelling::nearest "$(knob::_first_stranger "$value")" "${choices[@]}")
      ;;
    'one of '*)
      cure="use one of ${list%, }"
      nearest=$(spelling::nearest "$value" "${choices[@]}")
      ;;
    *) cure='name a path' ;;
  esac
  [[ -z $nearest ]] || cure="did you mean ${nearest}? ${cure^}"
  [[ $type != *' or empty' ]] || cure+=', or leave it empty'
  printf '%s\n' "$cure"
}
