#!/usr/bin/env bats
# The types of knobs, each with values that it accepts and values that it refuses; and the nearest word.

setup() {
  load ../test_helper
  sandbox::make
  ln -sf "$(real_python)" "${BOX}/bin/python3"
  # shellcheck disable=SC2016  # expanded when the script runs
  printf '%s\n' 'source "$(dirname "$0")/lib/regress.bash"' '"$@"' >"${HERE}/scripts/verb.sh"
}

@test "each type, and each pattern of a knob, takes what it says and nothing else" {
  # A line is a type, or a knob that has one; the next ones are +VALUE or -VALUE. Prints each value with the wrong result, and how many
  # there were.
  cat >"${HERE}/scripts/types.sh" <<'SH'
source "$(dirname "$0")/lib/regress.bash"
knob::read
count=0 type=''
while IFS= read -r line; do
  value=${line:1}
  case $line in
    +*) knob::has_type "$type" "$value" || printf 'refused: %s %s\n' "$type" "$line" ;;
    -*) ! knob::has_type "$type" "$value" || printf 'taken: %s %s\n' "$type" "$line" ;;
    *) type=${KNOB_TYPE[$line]-$line} && continue ;;
  esac
  count=$((count + 1))
done
printf '%d values\n' "$count"
SH
  # shellcheck disable=SC2016  # hostile on purpose
  cat >"${BOX}/types" <<'TYPES'
boolean
+
+TRUE
+off
-2
- 1
whole 0..5
+0
+5
-6
--1
-05
-
-a[$(touch ran)]
-99999999999999999999
whole -1..255 or empty
+
+-1
--2
path
+a b
-
file or empty
+
+~/x
such as a b matching [a-c]( [a-c])* or empty
+
+a c
-d
-ab
CLUSTER_NAME
+a-b_9
-A
--a
-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
SHM_SIZE
+64GB
+1073741824
-0gb
SHARED_ROOT
+/a/b-c.d
-private
-/
-/a b
RUN_AS
+0:0
-1000
NODE_IMAGE
+localhost:5000/a/b@sha256:0f
-a b
TORCH_INDEX_URL
+file:///wheels
-ftp://x
SHARED_GROUP
+42000
+ml-team
-a b
TRUSTED_UIDS
+1000 1001
+group
+1000 group
-me
NODES_PATH
+/a/b:/c
-bin
-/a:$(id)
NODES_CONTAINER
+apptainer exec --nv --bind /fs:/fs /fs/verl.sif
+--container-image=docker://nvcr.io#team/verl:1
-a;b
BATCH_TIME
+1-00:00:00
-$(id)
BATCH_OPTIONS
+--exclusive --constraint=a100|h100
-qos=high
---wrap="x y"
WORKER_DEVICES
+/dev/kfd /dev/dri
-/etc/passwd
WORKER_RESOURCES
+{"worker_node": 100}
+{"worker_node":1,"cpu":4}
-{"cpu": 4}
-{"worker_node": 0}
MODEL_SOURCE
+tiny
+hub:a/b@main
+path:/a b
-hub:
-foo
CODE_A
+codeA
+pypi:0.7.1
+git:/a dir/verl@v1/x
-pypi:
-git:https://example.org/verl
-../x
ALLOW
+
+changed,inconclusive
+changed inconclusive
-changed,,changed
-c*
PROFILE
+auto
-defaults
-local
-../env/cpu
WORKLOAD
+sft
-*
free
+
+$(touch ran)
TYPES
  touch "${HERE}/env/local.env"
  run env -i PATH="${BOX}/bin" NO_COLOR=1 "${BOX}/bin/bash" "${HERE}/scripts/types.sh" <"${BOX}/types"
  assert_status 0
  [[ ${lines[0]} == "$(grep -c '^[+-]' "${BOX}/types") values" ]] || fail 'judged otherwise'
  [[ ! -e ran && ! -e ${HERE}/ran ]]
  sandbox::run scripts/verb.sh knob::has_type 'list of a b' $'a\nx'
  assert_status 1 # its second line is not passed by
}

@test "a knob has the type in the line above it, or none; an unknown type is our error" {
  printf '%s\n' A=1 '#- x y: do: z' '#: whole 1..9, typed, for a b[C=3]' B=2 C=3 '#: bolean, for all' D= >"${HERE}/env/defaults.env"
  # shellcheck disable=SC2016
  sandbox::run scripts/verb.sh eval 'knob::read; knob::read
    for name in "${KNOB_NAMES[@]}"; do echo "${name} ${KNOB_DEFAULT[$name]} (${KNOB_TYPE[$name]}) ${KNOB_READERS[$name]}"; done
    echo "${KNOB_INSTEAD["x B"]}, ${KNOB_INSTEAD["y B"]}, ${#KNOB_INSTEAD[@]}"'
  [[ $output == $'A 1 () \nB 2 (whole 1..9) a b[C=3]\nC 3 () \nD  (bolean) all\ndo: z, do: z, 2' ]] || fail 'read otherwise'
  sandbox::run scripts/verb.sh knob::has_type bolean 1
  assert_error 1 "env/defaults.env has the type 'bolean', which scripts/lib/knob.bash does not know: use one that it does."
}

@test "the nearest word: one edit in three letters, neighbours that are swapped are one" {
  while IFS='|' read -r word nearest; do
    sandbox::run scripts/verb.sh spelling::nearest "$word" WORKERS WORKLOAD WAIT JSON CODE_ID CODE_A prepare test --help
    [[ $output == "$nearest" ]] || fail "${word}: not '${nearest}'"
  done <<'CASES'
WORKER|WORKERS
WORKLAOD|WORKLOAD
workload|WORKLOAD
tests|test
--hlep|--help
--|
nope|
CASES
}
