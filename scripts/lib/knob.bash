# knob: what env/defaults.env says about each knob: its name, its default and its type. All scripts check all values here.
# shellcheck shell=bash

declare -ga KNOB_NAMES=()
declare -gA KNOB_TYPE=() KNOB_DEFAULT=()
# Linux allows 128 KiB in one variable or word of a command line (execve(2)); over ssh the text grows by a third.
readonly KNOB_LONGEST=65536

# knob::read: reads env/defaults.env: each KEY=DEFAULT has its type in the line above it, "#: TYPE".
knob::read() {
  local lines line name type=''
  ((${#KNOB_NAMES[@]} == 0)) || return 0
  mapfile -t lines <"${REPO_DIR}/env/defaults.env"
  for line in "${lines[@]}"; do
    case $line in
      '#: '*) type=${line#'#: '} ;;
      '#'* | '') ;;
      *)
        name=${line%%=*}
        # shellcheck disable=SC2034  # scripts/lib/env.bash reads KNOB_DEFAULT
        KNOB_NAMES+=("$name") KNOB_TYPE[$name]=$type KNOB_DEFAULT[$name]=${line#*=}
        type=''
        ;;
    esac
  done
}

# knob::check NAME...: checks the type of each value. From here on a boolean is 1 or empty, however it was written.
knob::check() {
  local wrong=''
  knob::_find_wrong "$@"
  [[ -z $wrong ]] || knob::_refuse "$wrong"
}

# In the C locale [a-z] and {0,39} match bytes, as written.
knob::_find_wrong() {
  local LC_ALL=C name value
  for name in "$@"; do
    value=${!name}
    if ((${#value} > KNOB_LONGEST)) || ! knob::is_of "${KNOB_TYPE[$name]}" "$value"; then
      wrong=$name
      return
    fi
    [[ ${KNOB_TYPE[$name]} != boolean ]] || knob::_set_boolean "$name"
  done
}

knob::_set_boolean() {
  case ${!1,,} in
    1 | true | yes | on) declare -g "$1=1" ;;
    *) declare -g "$1=" ;;
  esac
}

# knob::is_of TYPE VALUE
knob::is_of() {
  local type=$1 value=$2 choices=() stranger
  if [[ $type == *' or empty' ]]; then
    [[ -n $value ]] || return 0
    type=${type% or empty}
  fi
  case $type in
    free) ;;
    boolean) [[ ${value,,} =~ ^(1|true|yes|on|0|false|no|off|)$ ]] ;;
    'whole '*) knob::_is_within "${type#whole }" "$value" ;;
    port) knob::_is_within 1024..65535 "$value" ;;
    size) [[ $value =~ ^[1-9][0-9]{0,14}([kKmMgGtT]?[bB]?)$ ]] ;;
    path) [[ -n $value ]] ;;
    mount) [[ $value =~ ^/[A-Za-z0-9_./-]*[A-Za-z0-9_]$ ]] ;;
    name) [[ $value =~ ^[a-z0-9][a-z0-9_-]{0,39}$ ]] ;;
    user) [[ $value =~ ^[0-9]{1,10}:[0-9]{1,10}$ ]] ;;
    image) [[ $value =~ ^[A-Za-z0-9][A-Za-z0-9._/:@-]*$ ]] ;;
    url) [[ $value =~ ^(https?|file)://[^[:space:]]+$ ]] ;;
    version) [[ $value =~ ^[0-9][A-Za-z0-9.+!-]*$ ]] ;;
    group) [[ $value =~ ^([0-9]{1,10}|[A-Za-z_][A-Za-z0-9_.-]{0,31})$ ]] ;;
    login) [[ $value =~ ^([A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9][A-Za-z0-9_.-]*(:[1-9][0-9]{0,4})?$ ]] ;;
    uids) [[ $value =~ ^[0-9]{1,10}(\ [0-9]{1,10})*$ ]] ;;
    variables) [[ $value =~ ^[A-Za-z_][A-Za-z0-9_]*(\ [A-Za-z_][A-Za-z0-9_]*)*$ ]] ;;
    batch) [[ $value =~ ^[A-Za-z0-9][A-Za-z0-9_.,:@+/-]*$ ]] ;;
    options) [[ $value =~ ^--[a-z][a-z-]*(=[][A-Za-z0-9_.,:@+/\&\|\(\)*-]+)?(\ --[a-z][a-z-]*(=[][A-Za-z0-9_.,:@+/\&\|\(\)*-]+)?)*$ ]] ;;
    words) [[ $value =~ ^[A-Za-z0-9_./-][A-Za-z0-9_.,:@%+/=#-]*(\ [A-Za-z0-9_.,:@%+/=#-]+)*$ ]] ;;
    directories) [[ $value =~ ^/[A-Za-z0-9_./+@-]*(:/[A-Za-z0-9_./+@-]*)*$ ]] ;;
    devices) [[ $value =~ ^/dev/[A-Za-z0-9_./-]+(\ /dev/[A-Za-z0-9_./-]+)*$ ]] ;;
    resources) knob::_is_resources "$value" ;;
    'source '*) knob::_is_source "$value" "${type#source }" ;;
    'list of '*) knob::_is_list "$value" "${type#list of }" ;;
    'one of '* | profile | transport | workload)
      knob::_choices "$type"
      [[ -n $value && $value != *' '* && " ${choices[*]} " == *" ${value} "* ]]
      ;;
    *) cli::die 1 "env/defaults.env has the type '${type}', which scripts/lib/knob.bash does not know: use one that it does." ;;
  esac
}

knob::_is_within() {
  [[ $2 =~ ^(0|-?[1-9][0-9]{0,14})$ ]] && (($2 >= ${1%..*} && $2 <= ${1#*..}))
}

# A flat JSON object of numbers in which worker_node, once, is more than 0.
knob::_is_resources() {
  local item='"[A-Za-z_][A-Za-z0-9_.-]{0,63}" *: *(0|[1-9][0-9]{0,8})(\.[0-9]{1,4})?'
  [[ $1 =~ ^\{\ *${item}(\ *,\ *${item})*\ *\}$ &&
    $1 =~ \"worker_node\"\ *:\ *([1-9]|0\.0*[1-9]) && ${1/'"worker_node"'/} != *'"worker_node"'* ]]
}

# knob::_is_source VALUE FORMS: a form is one of those below, or a literal word.
knob::_is_source() {
  local value=$1 form forms=()
  read -r -a forms <<<"$2"
  for form in "${forms[@]}"; do
    case $form in
      path:DIR) [[ $value != path:?* ]] || return 0 ;;
      pypi:VERSION) [[ ! $value =~ ^pypi:[0-9][A-Za-z0-9.+!-]*$ ]] || return 0 ;;
      git:URL@REF) [[ ! $value =~ ^git:.+@[A-Za-z0-9][A-Za-z0-9_./-]*$ ]] || return 0 ;;
      git:URL) [[ $value != git:?* ]] || return 0 ;;
      'hub:REPO[@REVISION]') [[ ! $value =~ ^hub:[A-Za-z0-9][A-Za-z0-9_./-]*(@[A-Za-z0-9][A-Za-z0-9_./-]*)?$ ]] || return 0 ;;
      CODE_ID) [[ ! $value =~ ^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$ ]] || return 0 ;;
      *) [[ $value != "$form" ]] || return 0 ;;
    esac
  done
  return 1
}

# knob::_is_list VALUE CHOICES: one or more of the choices, separated by commas or spaces. Puts the first unknown word into the
# caller's `stranger`.
knob::_is_list() {
  local words=()
  [[ $1 != *$'\n'* ]] || return 1
  IFS=', ' read -r -a words <<<"$1"
  for stranger in "${words[@]}"; do
    [[ -n $stranger && " $2 " == *" ${stranger} "* ]] || return 1
  done
  ((${#words[@]} > 0))
}

# knob::_choices TYPE: puts the words of a type that has some into the caller's array `choices`.
knob::_choices() {
  local file
  choices=()
  case $1 in
    'one of '*) read -r -a choices <<<"${1#one of }" ;;
    'list of '*) read -r -a choices <<<"${1#list of }" ;;
    profile)
      choices=(auto)
      for file in "${REPO_DIR}"/env/*.env; do
        file=${file##*/}
        [[ $file == defaults.env || $file == local.env ]] || choices+=("${file%.env}")
      done
      ;;
    transport) knob::_choose_files "${REPO_DIR}"/scripts/lib/transport/*.bash ;;
    workload) knob::_choose_files "${REPO_DIR}"/jobspecs/*.yaml ;;
  esac
}

knob::_choose_files() {
  choices=("${@##*/}")
  choices=("${choices[@]%.*}")
}

# knob::_refuse NAME: says what is wrong with its value and what to use instead.
knob::_refuse() {
  knob::_refuse_long "$1"
  local name=$1 type=${KNOB_TYPE[$1]% or empty} choices=() stranger=${!1} nearest='' cure
  knob::_choices "$type"
  cure=$(knob::_cure "$type")
  [[ $type != 'list of '* ]] || knob::_is_list "${!name}" "${type#list of }" || true
  ((${#choices[@]} == 0)) || nearest=$(word::nearest "$stranger" "${choices[@]}")
  [[ -z $nearest ]] || cure="did you mean ${nearest}? ${cure^}"
  [[ ${KNOB_TYPE[$name]} != *' or empty' ]] || cure+=', or leave it empty'
  cli::die 2 "${name}='$(cli::shown "${!name}")' (from ${ENV_ORIGIN[$name]}) is not usable: ${cure}."
}

knob::_refuse_long() {
  local LC_ALL=C value=${!1} cure='make it shorter'
  ((${#value} > KNOB_LONGEST)) || return 0
  [[ $1 != OVERRIDES ]] || cure='put them into a file, one per line, and name it in OVERRIDES_FILE'
  cli::die 2 "$1 (from ${ENV_ORIGIN[$1]}) has ${#value} bytes, and a knob takes at most ${KNOB_LONGEST}: ${cure}."
}

# knob::_cure TYPE: what to use instead, as part of a sentence; it reads `choices`.
knob::_cure() {
  local range=${1#whole } list
  list=$(printf '%s, ' "${choices[@]}")
  list=${list%, }
  case $1 in
    boolean) printf 'use 1, true, yes or on, or 0, false, no, off or nothing\n' ;;
    'whole '*) printf 'use a whole number from %s to %s\n' "${range%..*}" "${range#*..}" ;;
    port) printf 'use a TCP port from 1024 to 65535\n' ;;
    size) printf 'use a size such as 2gb or 512m\n' ;;
    path) printf 'name a path\n' ;;
    mount) printf 'use an absolute path without spaces\n' ;;
    name) printf 'use lower-case letters, digits, - and _, at most 40\n' ;;
    user) printf 'use numbers, as in 1000:1000 (uid:gid)\n' ;;
    image) printf 'use the name of an image, such as python:3.11\n' ;;
    url) printf 'use a URL that begins with https://, http:// or file://\n' ;;
    version) printf 'use a version, such as 0.7.1\n' ;;
    group) printf 'use the name or the number of a group\n' ;;
    login) printf 'use user@host or user@host:port\n' ;;
    uids) printf 'use numbers of users, separated by one space, as in 1000 1001\n' ;;
    variables) printf 'use names of environment variables, separated by one space\n' ;;
    batch) printf 'use only letters, digits and _.,:@+/-\n' ;;
    options) printf 'use options as --name or --name=value, separated by one space, without quotes\n' ;;
    words) printf 'use words of letters, digits and _.,:@%%+/=#-, separated by one space, without quotes\n' ;;
    directories) printf 'use absolute paths without spaces, separated by colons\n' ;;
    devices) printf 'use paths under /dev, separated by one space\n' ;;
    resources) printf 'use a JSON object of numbers with "worker_node" above 0, such as {"worker_node": 100}\n' ;;
    'source '*) sed 's/ /, /g; s/\(.*\), /\1 or /; s/^/use /' <<<"${1#source }" ;;
    'list of '*) printf 'use some of %s, separated by commas\n' "$list" ;;
    *) printf 'use one of %s\n' "$list" ;;
  esac
}
