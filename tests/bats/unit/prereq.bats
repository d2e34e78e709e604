#!/usr/bin/env bats
# 00_prereq_check: what it says where several checks fail; the check of GPUs: what the profile needs, and its messages.

setup() {
  load ../test_helper
  sandbox::make
  mkdir -p "${BOX}/dev/dri"
  nvidia_gpus 8
  runtimes 'io.containerd.runc.v2 nvidia runc '
}

@test "make check names all that fails, and its status is that of the first" {
  # shellcheck disable=SC2016  # expanded when the stub runs
  stub docker 'case "$1" in info) echo "|24.0.7|||" ;; create) echo its-id ;; import) cat >/dev/null; printf "sha256:%064d\n" 7 ;; cp | rm | rmi) ;; *) exit 1 ;; esac'
  stub timeout # the port is taken
  stub df 'echo Avail; echo 20G'
  sandbox::run MIN_DISK_GIB=999999 MIN_MEMORY_GIB=999999 scripts/00_prereq_check.sh
  assert_status 1
  [[ $(grep -c '^error   ' <<<"$output") == 6 ]] || fail 'not the four problems, their number and the status'
  assert_line "error   Port 127.0.0.1:8265 (DASHBOARD_PORT, from env/defaults.env) is taken by another process ('ss -ltnp' shows which): set DASHBOARD_PORT to a free port, or end that process."
  [[ $output == *'MIN_DISK_GIB=999999 are required'*'MIN_MEMORY_GIB=999999 are required'*'Compose v2 is missing'* ]] || fail 'a problem is missing'
  assert_line 'error   4 of 10 checks failed, 1 ended in a warning: each says above what to do.'
}

@test "make check without an engine leaves out what only the engine can answer" {
  stub docker 'echo "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?" >&2; exit 1'
  stub df 'echo Avail; echo 20G'
  sandbox::run MIN_DISK_GIB=999999 scripts/00_prereq_check.sh
  assert_status 1
  refute_text 'is ours, or not there yet'
  assert_line "error   No container engine answers (Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?): start it, or run 'scripts/dev/bootstrap_host.sh --engine'."
  assert_line 'error   3 of 10 checks failed, 5 could not be tried: each says above what to do.'
}

@test "NVIDIA: every GPU that cannot be used is named" {
  nvidia 8 $'GPU-2, 4242, python3\n' '8s/Disabled/Enabled/'
  gpus PROFILE=gpu
  assert_status 1
  [[ $output == *'GPU 2 (NVIDIA H200) is in use by the process 4242 '*'GPU 7 (NVIDIA H200) is split with MIG'* ]] || fail 'not both'
}

# As many GPUs as nvidia-smi lists; MIG slices are listed below theirs, indented.
nvidia_gpus() { stub nvidia-smi "for ((i = 0; i < $1; i++)); do echo \"GPU \$i: NVIDIA H200 (UUID: GPU-\$i)\"; echo '  MIG 1g'; done"; }
# nvidia N [USED [EDIT]]: N GPUs as each question prints them; USED has lines UUID, PID, NAME; sed's EDIT changes the list.
nvidia() {
  stub nvidia-smi "case \$1 in
    --query-gpu=*) for ((i = 0; i < $1; i++)); do echo \"\$i, GPU-\$i, 580.95.05, Disabled, NVIDIA H200\"; done | sed '${3:-}' ;;
    --query-compute-apps=*) printf '%s' '${2:-}' ;;
    *) for ((i = 0; i < $1; i++)); do echo \"GPU \$i: NVIDIA H200 (UUID: GPU-\$i)\"; done ;;
  esac"
}
runtimes() { stub docker "case \$1 in info) printf '%s\n' '$1' ;; version) ;; *) exit 1 ;; esac"; }
amd_devices() {
  local i
  touch "${BOX}/dev/kfd"
  mkdir "${BOX}/dev/infiniband"
  for ((i = 0; i < $1; i++)); do touch "${BOX}/dev/dri/renderD$((128 + i))"; done
}
gpus() { sandbox::verb DEVICE_ROOT="${BOX}/dev" "$@" prereq::run prereq::gpus; }

@test "a rehearsal needs no GPUs" {
  gpus
  assert_status 0
  assert_line "ok      no GPU is needed (profile cpu)"
  refute_called nvidia-smi
}

@test "NVIDIA: as many GPUs as the workers want, and an engine that can hand them out" {
  gpus PROFILE=gpu
  assert_status 0
  assert_line "ok      8 NVIDIA GPUs (nvidia-smi -L) (wanted: 8)"
  assert_line "ok      the container engine can hand out NVIDIA GPUs"
}

@test "NVIDIA: fewer GPUs than the workers want" {
  nvidia_gpus 4
  gpus PROFILE=gpu
  assert_error 1 "This machine has 4 NVIDIA GPUs (nvidia-smi -L), but WORKERS=2 with GPUS_PER_WORKER=4 each are required (profile gpu): lower one of the knobs."
  gpus PROFILE=gpu GPUS_PER_WORKER=2
  assert_status 0
}

@test "NVIDIA: GPUs that are in use, unless no worker gets them or our cluster has them" {
  nvidia 8 $'GPU-2, 4242, python3\nGPU-7, 4343, my server\n'
  gpus PROFILE=gpu
  assert_error 1 'GPU 2 (NVIDIA H200) is in use by the process 4242 (nvidia-smi), and a worker is to get it: end it, wait for it, share the GPU with FORCE=1, or set GPU_IDS=0,1,3,4,5,6 and a WORKERS times GPUS_PER_WORKER of at most 6.'
  gpus PROFILE=gpu FORCE=1
  assert_status 0
  gpus PROFILE=gpu WORKERS=1 GPUS_PER_WORKER=2
  assert_status 0
  gpus PROFILE=gpu WORKERS=2 GPUS_PER_WORKER=3 GPU_IDS=0,1,3,4,5,6
  assert_status 0
  for ids in 0,1,3 0,1,3,4,5,5 3,4,5,6,7,8; do
    gpus PROFILE=gpu WORKERS=2 GPUS_PER_WORKER=3 GPU_IDS="$ids"
    assert_error 2 "GPU_IDS=${ids} (from the command line or environment) must name 6 of this machine's 8 NVIDIA GPUs (nvidia-smi -L), each once and none above 7: WORKERS=2 with GPUS_PER_WORKER=3 each."
  done
  # shellcheck disable=SC2016  # expanded when the stub runs
  engine_has mvp11 00000000000000aa /w head
  fake_engine <<<"  info*) echo 'nvidia ' ;;"
  gpus PROFILE=gpu
  assert_status 0
}

@test "NVIDIA: no GPU is free, and the server of MPS is no use of one" {
  nvidia 1 $'GPU-0, 4242, python3\n'
  gpus PROFILE=gpu WORKERS=1 GPUS_PER_WORKER=1
  assert_error 1 'GPU 0 (NVIDIA H200) is in use by the process 4242 (nvidia-smi), and a worker is to get it: end it, wait for it, or share the GPU with FORCE=1.'
  nvidia 1 $'GPU-0, 4242, nvidia-cuda-mps-server\n'
  gpus PROFILE=gpu WORKERS=1 GPUS_PER_WORKER=1
  assert_status 0
}

@test "NVIDIA: a driver that does not know what is asked is a warning" {
  nvidia 8
  gpus PROFILE=gpu
  assert_line 'ok      8 GPUs checked: driver, MIG and processes (nvidia-smi)'
  nvidia_gpus 8
  gpus PROFILE=gpu
  assert_status 0
  assert_line "warning nvidia-smi described 0 of the 8 GPUs that the workers are to get, so driver, MIG and processes of the others are not checked: run 'nvidia-smi --query-gpu=index,uuid,driver_version,mig.mode.current,name --format=csv' to see why."
}

@test "NVIDIA: a driver that is too old for our image, which another image may suit" {
  nvidia 8 '' 's/580.95.05/535.183.01/'
  gpus PROFILE=gpu
  assert_error 1 "The NVIDIA driver 535.183.01 (nvidia-smi) is too old for the node image, whose torch is for CUDA 13: install 580 or later, or name an image for its CUDA in NODE_IMAGE."
  gpus PROFILE=gpu NODE_IMAGE=mine:1
  assert_status 0
}

@test "NVIDIA: a GPU that is split with MIG, and GPUs of several types" {
  nvidia 8 '' '4s/Disabled/Enabled/'
  gpus PROFILE=gpu
  assert_error 1 "GPU 3 (NVIDIA H200) is split with MIG (nvidia-smi), and a worker gets whole GPUs: run 'sudo nvidia-smi -i 3 -mig 0'."
  nvidia 8 '' '8s/H200/A100/'
  gpus PROFILE=gpu
  assert_status 0
  assert_line "warning the workers' GPUs are of several types (NVIDIA H200, NVIDIA A100): the slowest and smallest decides, and runs on them are not comparable with others."
}

@test "NVIDIA: of the GPUs that this shell was given, and of no others" {
  nvidia 8 $'GPU-2, 4242, python3\n'
  gpus PROFILE=gpu GPUS_PER_WORKER=1 CUDA_VISIBLE_DEVICES=4,5,2
  assert_status 0
  assert_line "ok      the workers get 4,5, of 4,5,2 that this shell may use (CUDA_VISIBLE_DEVICES='4,5,2')"
  assert_line 'ok      2 GPUs checked: driver, MIG and processes (nvidia-smi)'
  nvidia 2 $'GPU-9, 4242, python3\n'
  gpus PROFILE=gpu GPUS_PER_WORKER=1 SLURM_JOB_GPUS=4,6 CUDA_VISIBLE_DEVICES=0,1 # and nvidia-smi sees no other
  assert_status 0
  assert_line "ok      the workers get 4,6, of 4,6 that this shell may use (SLURM_JOB_GPUS='4,6', CUDA_VISIBLE_DEVICES='0,1')"
  assert_line 'ok      2 GPUs checked: driver, MIG and processes (nvidia-smi)'
  nvidia 8 ''
  gpus PROFILE=gpu CUDA_VISIBLE_DEVICES=4,5
  assert_error 2 "This shell may use 2 devices of this host (CUDA_VISIBLE_DEVICES='4,5'), but WORKERS=2 with GPUS_PER_WORKER=4 each are required (profile gpu): lower one of the knobs, or correct or unset the variable."
  gpus PROFILE=gpu GPUS_PER_WORKER=1 GPU_IDS=3,4 SLURM_JOB_GPUS=4,5
  assert_error 2 "GPU_IDS=3,4 (from the command line or environment) has 3, but this shell may only use 4,5 (SLURM_JOB_GPUS='4,5'): choose among those in GPU_IDS, or correct or unset the variable."
}

@test "NVIDIA: an engine that cannot hand GPUs out; the toolkit's hook is enough" {
  runtimes 'io.containerd.runc.v2 runc '
  gpus PROFILE=gpu
  assert_error 1 "The container engine cannot hand out NVIDIA GPUs (its runtimes are: io.containerd.runc.v2 runc): install the NVIDIA Container Toolkit, run 'nvidia-ctk runtime configure --runtime=docker' and restart the engine."
  stub nvidia-container-runtime-hook
  gpus PROFILE=gpu
  assert_status 0
}

@test "AMD: every device and as many GPUs as the workers want" {
  amd_devices 8
  gpus PROFILE=rocm
  assert_status 0
  assert_line "ok      devices for the workers: /dev/kfd /dev/dri /dev/infiniband"
  assert_line "ok      8 GPUs (/dev/dri/renderD*) (wanted: 8)"
  refute_called nvidia-smi
}

@test "AMD: a device that is not there, and how to do without" {
  amd_devices 8
  rmdir "${BOX}/dev/infiniband"
  gpus PROFILE=rocm
  assert_error 1 "This machine lacks /dev/infiniband (WORKER_DEVICES, from env/rocm.env): load the driver, or leave it out of WORKER_DEVICES."
  gpus PROFILE=rocm WORKER_DEVICES='/dev/kfd /dev/dri'
  assert_status 0
}

# ascend N: a host with N NPUs and the driver.
ascend() {
  local i
  touch "${BOX}"/dev/{davinci_manager,devmm_svm,hisi_hdc}
  mkdir -p "${BOX}"/host/usr/local/{Ascend/driver,dcmi,bin} "${BOX}/host/etc"
  touch "${BOX}/host/usr/local/bin/npu-smi" "${BOX}/host/etc/ascend_install.info"
  for ((i = 0; i < $1; i++)); do touch "${BOX}/dev/davinci${i}"; done
}
npus() { gpus PROFILE=npu HOST_ROOT="${BOX}/host"; }

@test "Ascend: every device, the driver, and as many NPUs as the workers want" {
  ascend 8
  npus
  assert_status 0
  assert_line 'ok      devices for the workers: /dev/davinci_manager /dev/devmm_svm /dev/hisi_hdc'
  assert_line 'ok      8 NPUs (/dev/davinci<n>) (wanted: 8)'
}

@test "Ascend: a host without the driver" {
  ascend 8
  rm -r "${BOX}/host/usr/local/Ascend"
  npus
  assert_error 1 'This machine lacks /usr/local/Ascend/driver, which the workers get (docker-compose.npu.yaml): install the driver in its default place.'
}

@test "disk: the shared root has as much free as is wanted, or one GiB less" {
  # shellcheck disable=SC2016  # expanded when the stub runs
  stub df 'printf "%s\n" Avail "   8G"'
  fake_engine </dev/null
  sandbox::verb MIN_DISK_GIB=8 prereq::disk
  assert_status 0
  assert_line "ok      8 GiB of disk free under ${BOX}/work dir/shared (wanted: 8)"
  assert_called "df --output=avail -BG -- ${BOX}" # the next directory above that exists
  sandbox::verb MIN_DISK_GIB=9 prereq::disk
  assert_error 1 "${BOX}/work dir/shared (from WORKDIR) has 8 GiB free, but MIN_DISK_GIB=9 are required: free some, or point WORKDIR elsewhere."
  # Of a running cluster it is said, and nothing ends.
  engine_has mvp11 00000000000000aa /w head
  sandbox::verb MIN_DISK_GIB=9 prereq::run prereq::disk
  assert_status 0
  assert_line 'ok      0 of 1 checks passed, 1 ended in a warning'
}

# memory KIB [KNOB=VALUE...]: the check of memory on a machine with so much available.
memory() {
  printf 'MemTotal: 99999999 kB\nMemFree: 1 kB\nMemAvailable: %d kB\n' "$1" >"${BOX}/meminfo"
  # shellcheck disable=SC2016  # expanded when the stub runs
  stub awk "[[ \${!#} != /proc/meminfo ]] || set -- \"\${@:1:\$#-1}\" \"\${BOX}/meminfo\"; exec $(type -P awk) \"\$@\""
  sandbox::verb "${@:2}" prereq::memory
}

@test "memory: what is available counts, in whole GiB, not what is free" {
  fake_engine </dev/null
  memory $((8 * 1048576)) MIN_MEMORY_GIB=8
  assert_status 0
  assert_line 'ok      8 GiB of memory available (wanted: 8)'
  memory $((8 * 1048576 - 1)) MIN_MEMORY_GIB=8
  assert_error 1 'This machine has 7 GiB of memory available, but MIN_MEMORY_GIB=8 are required: stop something, or lower the knob.'
  # Containers of the cluster use some of it already, so then it is not wanted again.
  engine_has mvp11 00000000000000aa /w head
  memory 1048576 MIN_MEMORY_GIB=8
  assert_status 0
}
