#!/usr/bin/env bats
# The types of knobs, each with values that it accepts and values that it refuses; and the nearest word.

setup() {
  load ../test_helper
  sandbox::make
  # types: a type on one line, then lines "+VALUE" and "-VALUE"; prints each value with the wrong result, and how many there were.
  cat >"${HERE}/scripts/types.sh" <<'SH'
source "$(dirname "$0")/lib/regress.bash"
cli::begin
count=0 type=''
while IFS= read -r line; do
  value=${line:1}
  case $line in
    +*) knob::is_of "$type" "$value" || printf 'refused: %s %s\n' "$type" "$line" ;;
    -*) ! knob::is_of "$type" "$value" || printf 'taken: %s %s\n' "$type" "$line" ;;
    *) type=$line && continue ;;
  esac
  count=$((count + 1))
done
printf '%d values\n' "$count"
SH
  # shellcheck disable=SC2016
  printf '%s\n' 'source "$(dirname "$0")/lib/regress.bash"' 'word::nearest "$@"' >"${HERE}/scripts/nearest.sh"
}

@test "each type takes what it says and nothing else" {
  # shellcheck disable=SC2016  # hostile on purpose
  cat >"${BOX}/types" <<'TYPES'
boolean
+
+1
+TRUE
+yes
+on
+0
+False
+no
+off
-2
-y
-ja
- 1
-11
whole 0..5
+0
+5
-6
--1
-05
-1.0
-
- 1
-a[$(touch ran)]
-1 2
-99999999999999999999
whole -1..255
+-1
+255
--2
whole 1..9 or empty
+
+9
-0
port
+1024
+65535
-1023
-65536
-http
size
+2gb
+512m
+64GB
+1073741824
-abc
-0gb
-1.5g
-2 gb
--1
-2gbb
path
+a b
+/x
-
mount
+/private
+/a/b-c.d
-private
-/
-/a b
-/a/
name
+a
+a-b_9
-A
--a
-a.b
-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
user
+0:0
+1000:1000
-1000
-me:me
-1000:
image
+python:3.11-slim-bookworm
+localhost:5000/a/b@sha256:0f
-a b
--v
url
+https://example.org/x
+file:///wheels
-example.org
-ftp://x
-https://a b
version
+0.7.1
+1!2.0+cpu
-v1
-1 2
group or empty
+
+0
+42000
+ml-team
+_a.b
-a b
--g
-a:b
-12345678901
login
+host
+me@host.example.org:2200
-
-me@
-a b
-host:0
-@host
uids or empty
+
+0
+1000 1001
-me
-1000,1001
-1000  1001
variables or empty
+
+A B_9 c
-A=1
-A  B
-9
batch
+gpu
+a100,h100
+mi250:8
+1-00:00:00
-
-a b
-"a"
-$(id)
--x
options or empty
+
+--qos=high
+--exclusive --constraint=a100|h100
-qos=high
---qos=a  --mem=0
---wrap="x y"
---comment=$(id)
words or empty
+
+apptainer exec --nv --bind /fs:/fs /fs/verl.sif
+--container-image=/fs/verl.sqsh --container-name=verl
+--container-image=docker://nvcr.io#team/verl:1
-a  b
-a 'b c'
-a;b
-$(id)
directories or empty
+
+/opt/venv/bin
+/a/b:/c
-bin
-/a b
-/a:$(id)
devices
+/dev/kfd
+/dev/kfd /dev/dri
-/etc/passwd
-kfd
-/dev/a,/dev/b
resources
+{"worker_node": 100}
+{"worker_node":0.5,"cpu":4}
+{ "cpu": 4 , "worker_node" : 1 }
-{}
-{bad
-{"cpu": 4}
-{"worker_node": 0}
-{"worker_node": 0.0}
-{"worker_node": "1"}
-{"worker_node": 1,}
-{"worker_node": 1, "worker_node": 0}
-{"worker_node": -1}
-{"a": {"worker_node": 1}}
-{"worker_node": 1} x
-[1]
source synthetic hub path:DIR
+synthetic
+hub
+path:/a b
-path:
-hub:x
-foo
-Synthetic
source path:DIR git:URL or empty
+
+git:https://example.org/verl
-git:
-hub:x
source tiny hub:REPO[@REVISION] path:DIR
+tiny
+hub:Qwen/Qwen2.5-0.5B-Instruct
+hub:a/b@main
-hub:
-hub:a b
-hub:a@
source CODE_ID pypi:VERSION git:URL@REF path:DIR
+codeA
+verl-0f
+pypi:0.7.1
+git:https://example.org/verl@main
+git:/a dir/verl@v1/x
-pypi:
-pypi:x
-git:https://example.org/verl
-git:x@-f
-a:b
-../x
-
one of memory rocksdb
+memory
-Memory
-mem
-memory rocksdb
-
list of a b-c or empty
+
+a
+a,b-c
+a b-c
+b-c, a
-,
-c
-a,,c
-a*
-aXb-c
list of a
+a
-
profile
+auto
+cpu
-defaults
-local
-../env/cpu
transport
+container
+ssh
-*
workload
+ppo
+sft
-ppo.yaml
free
+
+$(touch ran)
TYPES
  touch "${HERE}/env/local.env"
  run env -i PATH="${BOX}/bin" NO_COLOR=1 "${BOX}/bin/bash" "${HERE}/scripts/types.sh" <"${BOX}/types"
  assert_status 0
  [[ ${lines[0]} == "$(grep -c '^[+-]' "${BOX}/types") values" ]] || fail 'judged otherwise'
  [[ ! -e ran ]]
}

@test "a list is one line: its second line is not passed by" {
  # shellcheck disable=SC2016
  printf '%s\n' 'source "$(dirname "$0")/lib/regress.bash"' '"$@"' >"${HERE}/scripts/verb.sh"
  sandbox::run scripts/verb.sh knob::is_of 'list of a b' $'a\nx'
  assert_status 1
  sandbox::run scripts/verb.sh knob::is_of 'list of a b' $'a b'
  assert_status 0
}

@test "a knob has the type in the line above it, or none; all are read once" {
  printf '%s\n' A=1 '#: port' B=1024 C=2 >"${HERE}/env/defaults.env"
  # shellcheck disable=SC2016
  printf '%s\n' 'source "$(dirname "$0")/lib/regress.bash"' knob::read knob::read \
    'for name in "${KNOB_NAMES[@]}"; do echo "${name} ${KNOB_DEFAULT[$name]} (${KNOB_TYPE[$name]})"; done' >"${HERE}/scripts/read.sh"
  sandbox::run scripts/read.sh
  [[ $output == $'A 1 ()\nB 1024 (port)\nC 2 ()' ]] || fail 'read otherwise'
}

@test "the nearest word of a single one" {
  sed -i 's/^#: one of memory rocksdb$/#: one of memory/' "${HERE}/env/defaults.env"
  sandbox::run GCS_STORAGE=memry scripts/50_status.sh
  assert_status 2
  assert_line "error   GCS_STORAGE='memry' (from the command line or environment) is not usable: did you mean memory? Use one of memory."
}

@test "a type that knob.bash does not know is our own error" {
  sed -i 's/^#: boolean$/#: bolean/' "${HERE}/env/defaults.env"
  sandbox::run scripts/50_status.sh
  assert_status 1
  assert_line "error   env/defaults.env has the type 'bolean', which scripts/lib/knob.bash does not know: use one that it does."
}

@test "the nearest word: one edit in three letters, neighbours that are swapped are one" {
  while IFS='|' read -r word nearest; do
    # shellcheck disable=SC2086  # words, one each
    sandbox::run scripts/nearest.sh "$word" WORKERS WORKLOAD WAIT JSON CODE_ID CODE_A prepare test --help
    [[ $output == "$nearest" ]] || fail "${word}: not '${nearest}'"
  done <<'CASES'
WORKER|WORKERS
WORKLAOD|WORKLOAD
workload|WORKLOAD
JSN|JSON
COD_ID|CODE_ID
prepar|prepare
tests|test
--hlep|--help
--|
nope|
x|
CASES
  sandbox::run scripts/nearest.sh "$(printf 'W%.0s' {1..5000})" WORKERS
  [[ -z $output ]]
}
