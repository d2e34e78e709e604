#!/usr/bin/env bats
# 64 nodes are asked at once: a stub of an engine plays them, and each answers only when all have been asked.

setup() {
  bats_require_minimum_version 1.5.0
  load ../test_helper
  sandbox::make
  sandbox::verb
  stub docker - <<'SH'
    all_asked() { # WHAT COUNT: so many nodes have been asked this
      local asked
      mkdir -p "${BOX}/asked/$1"
      touch "${BOX}/asked/$1/${node}"
      for ((i = 0; i < 300; i++)); do
        asked=("${BOX}/asked/$1"/*)
        ((${#asked[@]} < $2)) || return 0
        [[ ! -e ${BOX}/late ]] || break
        read -rt 0.1 <>"${BOX}/never" || true
      done
      echo "${node} was not asked with the others" | tee "${BOX}/late" >&2 # one is enough
      return 1
    }
    node=$(grep -oE -m 1 'mine-(head|worker-[0-9]+)' <<<"$*" | sed -n 1p)
    case "$*" in
      'inspect --format {{.Name}}|'*) printf '/mine-%s|true|since|10.0.0.1 |mine||me|x||\n' head worker-{0..62} ;;
      'inspect --format {{.State.Running}} '*) [[ ! -e ${BOX}/down ]] || all_asked alive 64; [[ ! -e ${BOX}/down && ! -e ${BOX}/gone-${node} ]] && echo true ;;
      inspect*) echo 'true since' ;;
      *'/deps.py install '*) touch "${BOX}/installed" ;;
      *'/deps.py missing helper')
        if [[ ! -e ${BOX}/installed ]]; then
          all_asked first 64 && echo numpy
        elif [[ $node != mine-head ]]; then # the head is asked when it has installed them
          all_asked again 63
        fi
        ;;
      *' trial '*) echo held /private/lock && cat >/dev/null ;;
      *' question /private/lock') all_asked question 63 && [[ $node != *-7 ]] && echo held ;;
      *' writable /private '*) all_asked mount 64 && [[ ! -e ${BOX}/down && $node != *-7 ]] || exit 2 ;;
      *' await-nodes '*) printf 'worker-%d\n' {0..62} ;;
      *' cat /private/ray/mine/'*) echo 12-3 ;;
      *' list-packages '*'--start 12-3') all_asked list 63 && [[ $node != *-7 ]] || { echo "error   ${node} has none." >&2 && exit 3; } ;;
      *' verify search '*) grep -qxE '[0-9a-f]{40}' && touch "${BOX}/searched" ;;
      *' verify search-node '*)
        [[ -e ${BOX}/searched ]] && grep -qxE '[0-9a-f]{40}' && all_asked search 64 && [[ $node != *-7 ]] || { echo "error   ${node} was not searched." >&2 && exit 3; }
        touch "${BOX}/searched-${node}"
        ;;
      *' leftovers '*)
        all_asked leftovers "$(<"${BOX}/of")" || exit 1
        if [[ $node == *-7 ]]; then echo 2; else echo 0; fi
        ;;
    esac
SH
  mkfifo "${BOX}/never"
}

leftovers() { sandbox::run CLUSTER_NAME=mine WORKERS=63 scripts/verb.sh job::end_leftovers job /private/jobs/job; }

@test "what is left of a job: all nodes are asked at once" {
  echo 64 >"${BOX}/of"
  leftovers
  assert_status 0
  assert_line 'changed worker-7: ended 2 leftover processes of job'
  assert_line 'ok      nothing is left of job: 64 nodes checked, 2 processes found and ended'
}

# bats test_tags=slow
@test "what is left of a job: a node that cannot be reached is named, and the others are cleaned up" {
  echo 62 >"${BOX}/of"
  touch "${BOX}/gone-mine-worker-3" "${BOX}/gone-mine-worker-60"
  leftovers
  assert_status 8
  assert_line 'ok      nothing is left of job: 62 nodes checked, 2 processes found and ended'
  assert_line 'error   What is left of job on worker-3 worker-60 is unknown, because they cannot be reached: run this again after '"'make up'"' has restored them.'
}

@test "the packages of the helper: all nodes are asked at once, also after one of them has installed what all lacked" {
  sandbox::run CLUSTER_NAME=mine WORKERS=63 scripts/verb.sh deps::ensure
  assert_status 0
  assert_line "skip    worker-0: the helper's packages (all there)"
  assert_line "skip    worker-62: the helper's packages (all there)"
  [[ $(grep -c 'deps.py install helper' "$CALLS") == 1 ]] || fail 'it was installed more than once'
}

# bats test_tags=slow
@test "the locks of the shared root: all workers are asked at once, and one that does not answer is named" {
  sandbox::run CLUSTER_NAME=mine WORKERS=63 scripts/verb.sh shared::need_on_nodes
  assert_status 1
  assert_line "error   worker-7 does not see a lock that the head holds in /private (SHARED_ROOT, from env/defaults.env; it says ''): mount it on every node by NFS 4, without the options nolock and local_lock."
  [[ ! -e ${BOX}/late ]] || fail "$(<"${BOX}/late")"
}

# bats test_tags=slow
@test "whether the shared root is writable: all nodes are asked at once, and again whether they run" {
  sandbox::run CLUSTER_NAME=mine WORKERS=63 scripts/verb.sh prereq::shared_mount
  assert_status 1
  assert_line "error   worker-7 cannot write to /private (SHARED_ROOT; ${BOX}/work dir/shared on this host): fix the directory's owner, or run 'make down up' with another RUN_AS."
  rm -r "${BOX}/asked" && touch "${BOX}/down"
  sandbox::run CLUSTER_NAME=mine WORKERS=63 scripts/verb.sh prereq::shared_mount
  assert_status 0
  assert_line 'ok      no node is up yet that needs /private'
  [[ ! -e ${BOX}/late ]] || fail "$(<"${BOX}/late")"
}

# bats test_tags=slow
@test "lists of packages that are missing: all nodes make theirs at once, and one that cannot says why" {
  sandbox::run CLUSTER_NAME=mine WORKERS=63 scripts/verb.sh cluster::await_ready
  assert_status 0
  [[ $(grep -c '^changed worker-[0-9]*: listed its packages$' <<<"$output") == 62 ]] || fail 'not 62'
  assert_line 'error   mine-worker-7 has none.'
  refute_text 'worker-7: listed'
}

# bats test_tags=slow
@test "the search for a session's secret: all nodes are searched at once, and one that cannot be searched ends it when the others are done" {
  ln -s "$(type -P od)" "${BOX}/bin/od"
  # shellcheck disable=SC2016  # expanded when the script runs
  printf 'source "$(dirname "$0")/lib/regress.bash"\ncli::begin\nenv::load\nVERIFY_SESSION=/private/verify/one VERIFY_DRIVER=me\nsecret::plant "$VERIFY_CANARY"\nverify::search\necho went on\n' >"${HERE}/scripts/verb.sh"
  sandbox::run CLUSTER_NAME=mine WORKERS=63 scripts/verb.sh
  assert_status 3
  assert_line 'error   mine-worker-7 was not searched.'
  refute_text 'went on'
  [[ ! -e ${BOX}/late ]] || fail "$(<"${BOX}/late")"
  [[ $(find "$BOX" -name 'searched-*' | wc -l) == 63 ]] || fail 'not 63'
}
